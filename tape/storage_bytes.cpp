// SPDX-License-Identifier: BSD-3-Clause

// Tensors made over given storages.
#include "storage_bytes.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/TensorImpl.h>

#include <utility>

#include <remat/tape/interception_bits.h>

#include <ATen/ops/clone.h>

namespace remat {
namespace {

at::Tensor make_tensor(const c10::Storage& storage, c10::DispatchKeySet keys,
                       caffe2::TypeMeta dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                       int64_t offset) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage), keys, dtype);
  impl->set_sizes_and_strides(sizes, strides, offset);
  return at::Tensor(std::move(impl));
}

}  // namespace

at::Tensor clone_bytes(const c10::Storage& storage, c10::Device device) {
  const InterceptionOff off;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto key = c10::computeDispatchKey(c10::kByte, c10::kStrided, device);
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  return make_tensor(storage, c10::DispatchKeySet(key), caffe2::TypeMeta::Make<uint8_t>(), {bytes},
                     {1}, 0)
      .clone();
}

at::Tensor view_storage(const c10::Storage& storage, const at::Tensor& like) {
  const c10::TensorImpl& impl = *like.unsafeGetTensorImpl();
  return make_tensor(storage, impl.key_set(), impl.dtype(), like.sizes(), like.strides(),
                     like.storage_offset());
}

}  // namespace remat
