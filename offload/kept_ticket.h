// SPDX-License-Identifier: BSD-3-Clause

// The tensors that stores of the engine's kind accept, and the ticket of a tensor that stays.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include <remat/engine/offload_store.h>
#include <remat/engine/torch_compat.h>

namespace remat::detail {

/// True for a tensor that is fully described by its sizes, strides and memory.
inline bool is_plain(const at::Tensor& tensor) {
  return tensor.layout() == c10::kStrided && tensor.has_storage() && !tensor.is_meta() &&
         !tensor._is_zerotensor() && !tensor.key_set().has(c10::DispatchKey::Python) &&
         !has_dimension_names(tensor.key_set());
}

/// The tensor's version; 0 for an inference tensor, which has none.
inline uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<uint32_t>(tensor._version());
}

/// The ticket of a tensor that stays where it is.
class KeptTicket final : public OffloadStore::Ticket {
 public:
  explicit KeptTicket(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  at::Tensor get() override { return tensor_; }

 private:
  at::Tensor tensor_;
};

}  // namespace remat::detail
