// SPDX-License-Identifier: BSD-3-Clause

// What stores that pack tensors have in common.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>

#include <remat/policy/offload_terms.h>
#include <remat/tape/offload_store.h>

namespace remat::detail {

/// One ticket for a tensor that several nodes save. Knows tensors that fill their memory, without
/// keeping them. On any thread; two that pack a tensor at the same time have a ticket each.
class PackedTickets {
 public:
  using TicketPtr = std::shared_ptr<OffloadStore::Ticket>;

  /// Null: none that is alive, or the tensor was written since.
  TicketPtr find(const at::Tensor& tensor) const;
  void add(const at::Tensor& tensor, const TicketPtr& ticket);

 private:
  static constexpr size_t kFew = 64;
  struct Entry;

  void forget_gone();

  mutable std::mutex mutex_;
  // By storage
  std::unordered_map<const c10::StorageImpl*, std::shared_ptr<const Entry>> entries_;
  size_t most_ = kFew;
};

/// True for a tensor that is all of its memory, each element once.
bool fills_memory(const at::Tensor& tensor);

/// In `store`, or where it is if there is none. `where`: "[mask_store]".
std::shared_ptr<OffloadStore::Ticket> put_in(const std::shared_ptr<OffloadStore>& store,
                                             const at::Tensor& tensor, const char* where);

/// Of a store that packs tensors for `store`, or for nobody.
std::optional<OffloadTerms> limits_of(const std::shared_ptr<OffloadStore>& store);

}  // namespace remat::detail
