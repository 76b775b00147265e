// SPDX-License-Identifier: BSD-3-Clause

// The process-wide table of gatherers, by storage.
#include <remat/tape/gathered_memory.h>

#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/tape/held_storage.h>

namespace remat {
namespace {

/// The weak pointer keeps the storage's address from being reused.
struct Gathered {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  c10::VariableVersion shard;
  std::shared_ptr<MemoryGatherer> gatherer;
};

class GatheredMemory {
 public:
  void note(Gathered gathered) {
    std::vector<Gathered> gone;  // Destroyed after the lock is released: destructors may run code.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (by_storage_.size() >= next_sweep_) sweep(gone);
    const c10::StorageImpl* const storage = gathered.storage._unsafe_get_target();
    const auto [known, is_new] = by_storage_.try_emplace(storage, gathered);
    has_any_.store(true, std::memory_order_release);
    if (!is_new) gone.push_back(std::exchange(known->second, std::move(gathered)));
  }

  std::optional<Gathered> find(const c10::StorageImpl& storage) const {
    if (!has_any_.load(std::memory_order_acquire)) return std::nullopt;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = by_storage_.find(&storage);
    return known == by_storage_.end() ? std::nullopt : std::optional(known->second);
  }

 private:
  void sweep(std::vector<Gathered>& gone) {
    for (auto entry = by_storage_.begin(); entry != by_storage_.end();) {
      const bool is_gone = entry->second.storage.expired();
      if (is_gone) gone.push_back(std::move(entry->second));
      entry = is_gone ? by_storage_.erase(entry) : std::next(entry);
    }
    next_sweep_ = std::max(kFirstSweep, 2 * by_storage_.size());
  }

  static constexpr size_t kFirstSweep = 64;
  mutable std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, Gathered> by_storage_;
  size_t next_sweep_ = kFirstSweep;
  std::atomic<bool> has_any_{false};
};

GatheredMemory& gathered_memory() {
  static auto* const memory = new GatheredMemory;  // NOLINT: threads may outlive static objects
  return *memory;
}

}  // namespace

void note_gathered(const at::Tensor& tensor, const at::Tensor& shard,
                   std::shared_ptr<MemoryGatherer> gatherer) {
  gathered_memory().note(
      {weak_storage(tensor), shard.unsafeGetTensorImpl()->version_counter(), std::move(gatherer)});
}

std::shared_ptr<MemoryGatherer> gatherer_of(const c10::StorageImpl& storage) {
  const auto gathered = gathered_memory().find(storage);
  return gathered ? gathered->gatherer : nullptr;
}

uint32_t shard_version(const c10::StorageImpl& storage) {
  const auto gathered = gathered_memory().find(storage);
  return gathered ? gathered->shard.current_version() : 0;
}

}  // namespace remat
