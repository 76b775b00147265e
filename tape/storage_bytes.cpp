// SPDX-License-Identifier: BSD-3-Clause

// Tensors made over given storages.
#include "storage_bytes.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>

#include <utility>

#include <remat/placeholder/placeholder_impl.h>
#include <remat/tape/interception_bits.h>

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>

namespace remat {
namespace {

/// While alive, ops are nobody's but ours.
class Unseen {
 private:
  InterceptionOff off_;
  c10::InferenceMode normal_{false};
  at::AutoDispatchBelowADInplaceOrView below_autograd_;
};

at::Tensor as_bytes(const c10::Storage& storage) {
  return lay_out(storage, TensorLayout::flat(storage.nbytes(), c10::kByte));
}

}  // namespace

at::Tensor clone_bytes(const c10::Storage& storage) {
  const Unseen unseen;
  const at::Tensor bytes = as_bytes(storage);
  return PlaceholderStorage::is(storage) ? bytes : bytes.clone();
}

c10::Storage empty_storage(size_t size_bytes, c10::Device device) {
  const Unseen unseen;
  return at::empty({static_cast<int64_t>(size_bytes)},
                   at::TensorOptions().dtype(c10::kByte).device(device))
      .storage();
}

void copy_bytes(const c10::Storage& from, const c10::Storage& to) {
  const Unseen unseen;
  as_bytes(to).copy_(as_bytes(from));
}

c10::Storage copy_into_storage(const at::Tensor& value, const TensorLayout& layout,
                               size_t size_bytes) {
  const Unseen unseen;
  c10::Storage storage = empty_storage(size_bytes, value.device());
  lay_out(storage, layout).copy_(value);
  return storage;
}

// By a copy of the tensor's own class: quantized and nested tensors are more than TensorImpls.
at::Tensor view_storage(const c10::Storage& storage, const at::Tensor& like) {
  auto impl = like.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true);
  impl->set_storage_keep_dtype(storage);
  return at::Tensor(std::move(impl));
}

}  // namespace remat
