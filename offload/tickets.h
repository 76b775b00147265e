// SPDX-License-Identifier: BSD-3-Clause

// The tensors that stores accept, the ticket of a tensor that stays, and the tickets of stores that
// pack tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include <remat/engine/offload_store.h>
#include <remat/engine/torch_compat.h>
#include <remat/policy/offload_terms.h>

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

/// The ticket of a tensor that no store moves.
class KeptTicket final : public OffloadStore::Ticket {
 public:
  explicit KeptTicket(at::Tensor tensor) : tensor_(std::move(tensor)) {}
  at::Tensor get() override { return tensor_; }

 private:
  at::Tensor tensor_;
};

/// Puts packed tensors in another store. Nodes that save the same tensor share one ticket. Takes
/// tensors that fill their memory, and does not keep them alive. Any thread; two threads that pack
/// a tensor at the same time get a ticket each.
class PackedTickets {
 public:
  using TicketPtr = std::shared_ptr<OffloadStore::Ticket>;
  /// Returns a tensor's elements in the order of its memory, from its packed form.
  using Unpack = std::function<at::Tensor(const at::Tensor& packed)>;

  /// `store`: null to leave tensors where they are. `where`: prefix of errors, such as
  /// "[mask_store]".
  PackedTickets(std::shared_ptr<OffloadStore> store, const char* where)
      : store_(std::move(store)), where_(where) {}

  /// Puts `tensor` into the store without packing it.
  TicketPtr put(const at::Tensor& tensor) const;

  /// Puts the packed tensor that `pack` returns in the store. If `tensor` has a live ticket and was
  /// not written since, returns that ticket instead.
  TicketPtr put(const at::Tensor& tensor,
                const std::function<std::pair<at::Tensor, Unpack>()>& pack);

  const OffloadStore* store() const { return store_.get(); }

  /// OffloadStore::limits() for a store that packs tensors.
  std::optional<OffloadTerms> limits() const;

 private:
  static constexpr size_t kFew = 64;
  struct Entry;

  TicketPtr find(const at::Tensor& tensor) const;
  void add(const at::Tensor& tensor, const TicketPtr& ticket);

  const std::shared_ptr<OffloadStore> store_;
  const char* const where_;
  mutable std::mutex mutex_;
  // Keyed by the storage of the tensor that was packed.
  std::unordered_map<const c10::StorageImpl*, std::shared_ptr<const Entry>> entries_;
  size_t most_ = kFew;
};

/// True for a tensor whose elements cover all of its memory, each once.
bool fills_memory(const at::Tensor& tensor);

}  // namespace remat::detail
