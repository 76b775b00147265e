// SPDX-License-Identifier: BSD-3-Clause

// The common part of stores that pack tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <remat/engine/offload_store.h>
#include <remat/policy/offload_terms.h>

namespace remat::detail {

/// Shares one ticket among nodes that save the same tensor. Takes tensors that fill their memory,
/// and does not keep them alive. Any thread; two threads that pack a tensor at the same time get a
/// ticket each.
class PackedTickets {
 public:
  using TicketPtr = std::shared_ptr<OffloadStore::Ticket>;

  /// The live ticket of `tensor`; null if there is none, or if the tensor was written since.
  TicketPtr find(const at::Tensor& tensor) const;
  void add(const at::Tensor& tensor, const TicketPtr& ticket);

 private:
  static constexpr size_t kFew = 64;
  struct Entry;

  void forget_gone();

  mutable std::mutex mutex_;
  // By storage.
  std::unordered_map<const c10::StorageImpl*, std::shared_ptr<const Entry>> entries_;
  size_t most_ = kFew;
};

/// True for a tensor whose elements cover all of its memory, each once.
bool fills_memory(const at::Tensor& tensor);

/// Puts `tensor` in `store`, or keeps it where it is if `store` is null. `where`: prefix of errors,
/// such as "[mask_store]".
std::shared_ptr<OffloadStore::Ticket> put_in(const std::shared_ptr<OffloadStore>& store,
                                             const at::Tensor& tensor, const char* where);

/// Limits of a store that packs tensors for `store`, which may be null.
std::optional<OffloadTerms> limits_of(const std::shared_ptr<OffloadStore>& store);

}  // namespace remat::detail
