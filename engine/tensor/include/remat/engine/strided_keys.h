// SPDX-License-Identifier: BSD-3-Clause

// Recognising ordinary strided tensors by their dispatch keys.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/TensorImpl.h>

namespace remat {

/// True if the tensor has only dispatch keys that a strided tensor may have on any device, and its
/// sizes are integers, not symbols. Faster than asking for each other kind of tensor.
inline bool has_strided_keys(const at::Tensor& tensor) {
  static constexpr c10::DispatchKeySet kStrided =
      c10::DispatchKeySet(c10::DispatchKeySet::RAW, c10::full_backend_mask) |
      c10::DispatchKeySet({c10::DispatchKey::Dense, c10::DispatchKey::AutogradFunctionality,
                           c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::Conjugate,
                           c10::DispatchKey::Negative}) |
      c10::autocast_dispatch_keyset;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return kStrided.has_all(impl.key_set()) && !impl.has_symbolic_sizes_strides();
}

}  // namespace remat
