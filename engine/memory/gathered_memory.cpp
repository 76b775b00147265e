// SPDX-License-Identifier: BSD-3-Clause

// The process-wide table of gatherers, by storage.
#include <remat/engine/gathered_memory.h>

#include <atomic>
#include <utility>

#include <remat/engine/held_storage.h>

#include "owner_table.h"

namespace remat {
namespace {

/// The version counter of the shard, and the function that gathers the memory.
using Gathered = std::pair<c10::VariableVersion, MemoryGatherer>;
using GatheredTable = OwnerTable<c10::weak_intrusive_ptr<c10::StorageImpl>, Gathered>;

std::atomic<bool> is_any_gathered{false};

GatheredTable& gathered_memory() {
  static auto& table = *new GatheredTable(/*few=*/64);
  return table;
}

Gathered find_gathered(const c10::StorageImpl& storage) {
  Gathered found;
  if (!is_any_gathered.load(std::memory_order_acquire)) return found;
  gathered_memory().read(&storage, [&](const Gathered& gathered) { found = gathered; });
  return found;
}

}  // namespace

void note_gathered(const at::Tensor& tensor, const at::Tensor& shard, MemoryGatherer gatherer) {
  Gathered gathered(shard.unsafeGetTensorImpl()->version_counter(), std::move(gatherer));
  gathered_memory().change(tensor.storage().unsafeGetStorageImpl(), weak_storage(tensor),
                           [&](Gathered& known) { std::swap(known, gathered); });
  is_any_gathered.store(true, std::memory_order_release);
}

MemoryGatherer gatherer_of(const c10::StorageImpl& storage) {
  return find_gathered(storage).second;
}

uint32_t shard_version(const c10::StorageImpl& storage) {
  const auto [shard, gatherer] = find_gathered(storage);
  return gatherer ? shard.current_version() : 0;
}

}  // namespace remat
