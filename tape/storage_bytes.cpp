// SPDX-License-Identifier: BSD-3-Clause

// Tensors made over given storages.
#include "storage_bytes.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/TensorImpl.h>

#include <utility>

#include <remat/tape/interception_bits.h>

#include <ATen/ops/clone.h>

namespace remat {
at::Tensor clone_bytes(const c10::Storage& storage, c10::Device device) {
  const InterceptionOff off;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto key = c10::computeDispatchKey(c10::kByte, c10::kStrided, device);
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key),
                                                   caffe2::TypeMeta::Make<uint8_t>());
  impl->set_sizes_contiguous({bytes});
  return at::Tensor(std::move(impl)).clone();
}

// By a copy of the tensor's own class: quantized and nested tensors are more than TensorImpls.
at::Tensor view_storage(const c10::Storage& storage, const at::Tensor& like) {
  auto impl = like.unsafeGetTensorImpl()->shallow_copy_and_detach(
      c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true);
  impl->set_storage_keep_dtype(storage);
  return at::Tensor(std::move(impl));
}

}  // namespace remat
