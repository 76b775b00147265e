// SPDX-License-Identifier: BSD-3-Clause

#include "tickets.h"

#include <ATen/ops/as_strided.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include <remat/engine/held_storage.h>

namespace remat::detail {
namespace {

const c10::StorageImpl* address_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

class PackedTicket final : public OffloadStore::Ticket {
 public:
  PackedTicket(const at::Tensor& tensor, PackedTickets::Unpack unpack,
               PackedTickets::TicketPtr packed)
      : sizes_(tensor.sizes()),
        strides_(tensor.strides()),
        unpack_(std::move(unpack)),
        packed_(std::move(packed)) {}
  at::Tensor get() override { return at::as_strided(unpack_(packed_->get()), sizes_, strides_); }

 private:
  c10::DimVector sizes_;
  c10::DimVector strides_;
  PackedTickets::Unpack unpack_;
  PackedTickets::TicketPtr packed_;
};

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

PackedTickets::TicketPtr PackedTickets::put(const at::Tensor& tensor) const {
  if (!store_) return std::make_shared<KeptTicket>(tensor);
  TicketPtr ticket = store_->put(tensor);
  TORCH_CHECK_VALUE(ticket, where_, " store: expected a ticket, got null.");
  return ticket;
}

PackedTickets::TicketPtr PackedTickets::put(
    const at::Tensor& tensor, const std::function<std::pair<at::Tensor, Unpack>()>& pack) {
  if (TicketPtr known = find(tensor)) return known;
  auto [packed, unpack] = pack();
  auto ticket = std::make_shared<PackedTicket>(tensor, std::move(unpack), put(packed));
  add(tensor, ticket);
  return ticket;
}

PackedTickets::TicketPtr PackedTickets::find(const at::Tensor& tensor) const {
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(address_of(tensor));
  const bool is_known = entry != entries_.end() && entry->second->is_of(tensor);
  return is_known ? entry->second->ticket.lock() : nullptr;
}

void PackedTickets::add(const at::Tensor& tensor, const TicketPtr& ticket) {
  auto entry = std::make_shared<const Entry>(tensor, ticket);
  const std::lock_guard lock(mutex_);
  if (entries_.size() >= most_) {
    std::erase_if(entries_, [](const auto& known) { return known.second->ticket.expired(); });
    most_ = std::max(kFew, 2 * entries_.size());
  }
  entries_.insert_or_assign(address_of(tensor), std::move(entry));
}

bool fills_memory(const at::Tensor& tensor) {
  return is_plain(tensor) && tensor.numel() > 0 && tensor.is_non_overlapping_and_dense() &&
         tensor.nbytes() == tensor.storage().nbytes();
}

std::optional<OffloadTerms> PackedTickets::limits() const {
  if (store_) return store_->limits();
  // Without a store nothing leaves the device.
  return OffloadTerms{.places = {}, .min_bytes = OffloadPlace::kNoLimit};
}

}  // namespace remat::detail
