// SPDX-License-Identifier: BSD-3-Clause

// Packing of bool tensors into bits: bit i of byte k is element 8 k + i, in memory order.
#include <remat/offload/mask_store.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/bitwise_and.h>
#include <ATen/ops/bitwise_left_shift.h>
#include <ATen/ops/bitwise_right_shift.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>

#include "packed_tickets.h"

namespace remat {
namespace {

constexpr int64_t kBits = 8;

at::Tensor pack(const at::Tensor& mask) {
  const at::Tensor values = at::as_strided(mask, {mask.numel()}, {1}).view(at::kByte);
  const at::Tensor bits = at::zeros({(values.numel() + kBits - 1) / kBits}, values.options());
  for (const auto i : c10::irange(std::min(kBits, values.numel()))) {
    // A byte of reinterpreted memory may have bits other than the last.
    const at::Tensor each = values.slice(0, i, std::nullopt, kBits).ne(0).view(at::kByte);
    bits.narrow(0, 0, each.numel()).bitwise_or_(at::bitwise_left_shift(each, i));
  }
  return bits;
}

at::Tensor unpack(const at::Tensor& bits, int64_t count) {
  const at::Tensor values = at::empty({count}, bits.options());
  for (const auto i : c10::irange(std::min(kBits, count))) {
    const at::Tensor each = values.slice(0, i, std::nullopt, kBits);
    each.copy_(at::bitwise_and(at::bitwise_right_shift(bits.narrow(0, 0, each.numel()), i), 1));
  }
  return values.view(at::kBool);
}

class PackedMask final : public OffloadStore::Ticket {
 public:
  PackedMask(const at::Tensor& mask, std::shared_ptr<OffloadStore::Ticket> bits)
      : sizes_(mask.sizes()), strides_(mask.strides()), bits_(std::move(bits)) {}
  at::Tensor get() override {
    return at::as_strided(unpack(bits_->get(), c10::multiply_integers(sizes_)), sizes_, strides_);
  }

 private:
  c10::DimVector sizes_;
  c10::DimVector strides_;
  std::shared_ptr<OffloadStore::Ticket> bits_;
};

class Store final : public MaskStore {
 public:
  explicit Store(std::shared_ptr<OffloadStore> store) : store_(std::move(store)) {}

  std::shared_ptr<Ticket> put(const at::Tensor& tensor) override {
    if (!is_mask(tensor)) return keep(tensor);
    if (std::shared_ptr<Ticket> known = tickets_.find(tensor)) return known;
    const at::Tensor bits = pack(tensor);
    const auto ticket = std::make_shared<PackedMask>(tensor, keep(bits));
    tickets_.add(tensor, ticket);
    const std::lock_guard lock(mutex_);
    ++stats_.count;
    stats_.mask_bytes += static_cast<int64_t>(tensor.nbytes());
    stats_.packed_bytes += static_cast<int64_t>(bits.nbytes());
    return ticket;
  }

  std::optional<OffloadTerms> limits() const override { return detail::limits_of(store_); }
  bool is_exact() const override { return !store_ || store_->is_exact(); }

  MaskStats stats() const override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

 private:
  static bool is_mask(const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kBool && detail::fills_memory(tensor);
  }

  std::shared_ptr<Ticket> keep(const at::Tensor& tensor) const {
    return detail::put_in(store_, tensor, "[mask_store]");
  }

  const std::shared_ptr<OffloadStore> store_;
  detail::PackedTickets tickets_;
  mutable std::mutex mutex_;  // its holder never waits for anything
  MaskStats stats_;
};

}  // namespace

std::shared_ptr<MaskStore> mask_store(std::shared_ptr<OffloadStore> store) {
  return std::make_shared<Store>(std::move(store));
}

}  // namespace remat
