// SPDX-License-Identifier: BSD-3-Clause

// The process-wide log of exchanges.
#include "exchanged_memory.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include <remat/tape/held_storage.h>
#include <remat/tape/op_call.h>
#include <remat/tape/tensor_layout.h>
#include <remat/tape/unversioned_writes.h>

#include "version_table.h"

namespace remat {

/// A tensor's storage and layout. The weak pointer keeps the address from being reused.
struct ExchangedMemory::Place {
  explicit Place(const at::Tensor& tensor) {
    if (!has_layout(tensor)) return;
    layout = TensorLayout(tensor);
    storage = weak_storage(tensor);
  }

  const void* memory() const { return storage ? storage->_unsafe_get_target() : nullptr; }
  bool is_empty() const { return storage && c10::multiply_integers(layout.sizes) == 0; }
  bool is_gone() const { return !storage || storage->expired(); }
  bool operator==(const Place& other) const {
    return memory() == other.memory() && layout == other.layout;
  }

  TensorLayout layout;
  std::optional<c10::weak_intrusive_ptr<c10::StorageImpl>> storage;
};

namespace {

using Now = ExchangedMemory::Now;
using Place = ExchangedMemory::Place;

std::atomic<uint64_t> last_exchange{0};

/// The exchanges of one tensor.
class Exchanges {
 public:
  Exchanges(const void* tensor, const Place& now) : tensor_(tensor), now_(now) {}

  const void* tensor() const { return tensor_; }

  void add(const Place& before, const Place& now, uint64_t number) {
    const auto known = std::find_if(left_.begin(), left_.end(),
                                    [&](const Left& left) { return left.place == before; });
    if (known == left_.end()) {
      if (left_.size() >= kMost) forget();
      left_.push_back({before, number});
    } else {
      known->number = number;
    }
    now_ = now;
  }

  Now find(const SavedVersion& saved) const {
    if (saved.writes() < forgotten_) return Now::kElsewhere;
    const auto left = std::find_if(left_.begin(), left_.end(), [&](const Left& place) {
      return place.number > saved.writes() &&
             SavedVersion::place_of(tensor_, place.place.memory()) == saved.place();
    });
    if (left == left_.end() || left->place == now_) return Now::kThere;
    return now_.is_empty() ? Now::kGivenUp : Now::kElsewhere;
  }

 private:
  static constexpr size_t kMost = 32;

  struct Left {
    Place place;
    uint64_t number;  // When it last left.
  };

  /// Drops the oldest place whose memory is freed. Tensors saved before it was left count as
  /// exchanged.
  void forget() {
    auto oldest = left_.end();
    for (auto left = left_.begin(); left != left_.end(); ++left) {
      const bool is_older = oldest == left_.end() || left->number < oldest->number;
      if (is_older && left->place.is_gone()) oldest = left;
    }
    if (oldest == left_.end()) return;
    forgotten_ = std::max(forgotten_, oldest->number);
    left_.erase(oldest);
  }

  const void* tensor_;  // Only an identity; never dereferenced.
  Place now_;
  std::vector<Left> left_;
  uint64_t forgotten_ = 0;
};

/// The exchanges of all tensors, by version counter.
VersionTable<std::vector<Exchanges>>& exchanges() {
  static auto& table = *new VersionTable<std::vector<Exchanges>>(/*few=*/256);
  return table;
}

void add(const at::Tensor& tensor, const Place& before, const Place& now) {
  const c10::TensorImpl* const address = tensor.unsafeGetTensorImpl();
  exchanges().change(address->version_counter(), [&](std::vector<Exchanges>& tensors) {
    auto one = std::find_if(tensors.begin(), tensors.end(),
                            [&](const Exchanges& known) { return known.tensor() == address; });
    if (one == tensors.end()) one = tensors.emplace(one, address, now);
    const uint64_t number = UnversionedWrites::next();
    one->add(before, now, number);
    last_exchange.store(number, std::memory_order_release);
  });
}

}  // namespace

ExchangedMemory::ExchangedMemory(const at::Tensor& tensor) {
  if (!tensor.is_inference()) before_ = std::make_unique<Place>(tensor);
}

ExchangedMemory::~ExchangedMemory() = default;

void ExchangedMemory::finish(const at::Tensor& tensor) {
  if (!before_) return;
  const Place now(tensor);
  if (!(now == *before_)) add(tensor, *before_, now);
}

ExchangedMemory::Now ExchangedMemory::find(const SavedVersion& saved) {
  if (C10_LIKELY(saved.writes() >= last_exchange.load(std::memory_order_acquire)))
    return Now::kThere;
  Now now = Now::kThere;
  exchanges().read(saved.counter(), [&](const std::vector<Exchanges>& tensors) {
    for (const Exchanges& one : tensors) now = std::max(now, one.find(saved));
  });
  return now;
}

}  // namespace remat
