// SPDX-License-Identifier: BSD-3-Clause

#include "packed_tickets.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "kept_ticket.h"

#include <remat/engine/held_storage.h>

namespace remat::detail {
namespace {

const c10::StorageImpl* address_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

}  // namespace

struct PackedTickets::Entry {
  Entry(const at::Tensor& tensor, const TicketPtr& of)
      : ticket(of),
        storage(weak_storage(tensor)),
        version(version_of(tensor)),
        sizes(tensor.sizes()),
        strides(tensor.strides()),
        dtype(tensor.scalar_type()) {}

  bool is_of(const at::Tensor& tensor) const {
    const bool is_as_it_was = !storage.expired() && version == version_of(tensor);
    return is_as_it_was && sizes == tensor.sizes() && strides == tensor.strides() &&
           dtype == tensor.scalar_type();
  }

  std::weak_ptr<OffloadStore::Ticket> ticket;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  uint32_t version;
  c10::DimVector sizes;
  c10::DimVector strides;
  at::ScalarType dtype;
};

PackedTickets::TicketPtr PackedTickets::find(const at::Tensor& tensor) const {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(address_of(tensor));
  const bool is_known = entry != entries_.end() && entry->second->is_of(tensor);
  return is_known ? entry->second->ticket.lock() : nullptr;
}

void PackedTickets::add(const at::Tensor& tensor, const TicketPtr& ticket) {
  auto entry = std::make_shared<const Entry>(tensor, ticket);
  const std::lock_guard lock(mutex_);
  if (entries_.size() >= most_) forget_gone();
  entries_.insert_or_assign(address_of(tensor), std::move(entry));
}

void PackedTickets::forget_gone() {
  std::erase_if(entries_, [](const auto& entry) { return entry.second->ticket.expired(); });
  most_ = std::max(kFew, 2 * entries_.size());
}

bool fills_memory(const at::Tensor& tensor) {
  return is_plain(tensor) && tensor.numel() > 0 && tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() == tensor.storage().nbytes();
}

std::shared_ptr<OffloadStore::Ticket> put_in(const std::shared_ptr<OffloadStore>& store,
                                             const at::Tensor& tensor, const char* where) {
  if (!store) return std::make_shared<KeptTicket>(tensor);
  std::shared_ptr<OffloadStore::Ticket> ticket = store->put(tensor);
  TORCH_CHECK_VALUE(ticket, where, " store: expected a ticket, got null.");
  return ticket;
}

std::optional<OffloadTerms> limits_of(const std::shared_ptr<OffloadStore>& store) {
  if (store) return store->limits();
  // Without a store nothing leaves the device.
  return OffloadTerms{.places = {}, .min_bytes = OffloadPlace::kNoLimit};
}

}  // namespace remat::detail
