// SPDX-License-Identifier: BSD-3-Clause

// Finding the regions that have read a storage.

#include <c10/util/irange.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/engine/outside_log.h>
#include <remat/engine/region.h>
#include <remat/engine/scope.h>
#include <remat/engine/storage_bytes.h>
#include <remat/engine/stream_use.h>
#include <remat/engine/tensor_meta.h>

namespace remat {
namespace {

/// True if the region only reads the storage, so that a replay would read what others have written
/// there since.
bool is_only_read(const OutsideStorage& outside) {
  if (!outside.has_storage() || outside.is_written() || outside.is_cast()) return false;
  if (!outside.is_read() && !outside.is_argument()) return false;
  // False for a parameter, because a replay must use the leaf itself, not a copy. A write to most
  // weights raises in plain code, too, because autograd has saved them.
  const at::Tensor first(outside.first_tensor().lock());
  return !first.defined() || !is_parameter(first);
}

/// A region's id, and the number of a storage in its OutsideLog.
using Reader = std::pair<uint64_t, size_t>;

/// The storages read by regions that this thread has closed. A running region adds nothing. Each
/// closed region is scanned once, before the first op that writes after the region's end.
///
/// Refers to regions by id, so it keeps nothing alive. While a region lives, the addresses of
/// storages that it has read are not reused.
class Readers {
 public:
  void hand_over(const at::Tensor& tensor) {
    const void* const memory = memory_of(tensor);
    const auto entry = memory ? readers_.find(memory) : readers_.end();
    if (entry == readers_.end()) return;
    const std::vector<Reader> readers = std::move(entry->second);
    readers_.erase(entry);
    // In a replay, has_alias() is no sign of `data`, because a replay's tensors have their own
    // version counters on what its forward wrote.
    const bool in_replay = Scope::current_replay() != 0;
    std::shared_ptr<const at::Tensor> bytes;
    for (const auto& [id, number] : readers) {
      const std::shared_ptr<const Region> region = find_region(id);
      if (!region || !region->replayer()) continue;
      const OutsideStorage& outside = region->outside()[number];
      if (outside.changed() || outside.has_other_bytes(tensor) || outside.handed_over()) continue;
      if (!in_replay && outside.has_alias(tensor)) {
        outside.mark_written_by_alias();
        continue;
      }
      if (!bytes) bytes = std::make_shared<const at::Tensor>(clone_bytes(tensor.storage()));
      let_replays_wait(tensor.device(), region->streams());
      outside.hand_over(bytes);
    }
  }

  void catch_up() {
    for (const uint64_t id : take_closed_here()) {
      if (const std::shared_ptr<const Region> region = find_region(id)) add(*region);
    }
  }

  bool empty() const { return readers_.empty(); }

 private:
  void add(const Region& region) {
    if (!region.replayer()) return;
    for (const auto i : c10::irange(region.outside().size())) {
      const OutsideStorage& outside = region.outside()[i];
      if (!is_only_read(outside)) continue;
      readers_[outside.address()].emplace_back(region.id(), i);
      if (++count_ > most_) forget_gone();
    }
  }

  void forget_gone() {
    count_ = 0;
    for (auto entry = readers_.begin(); entry != readers_.end();) {
      std::erase_if(entry->second, [](const Reader& reader) { return !find_region(reader.first); });
      count_ += entry->second.size();
      entry = entry->second.empty() ? readers_.erase(entry) : std::next(entry);
    }
    most_ = std::max(kFew, 2 * count_);
  }

  static constexpr size_t kFew = 1024;

  std::unordered_map<const void*, std::vector<Reader>> readers_;  // By storage address.
  size_t count_ = 0;                                              // At least the number of readers.
  size_t most_ = kFew;
};

thread_local Readers readers;

}  // namespace

void hand_to_readers(const OpCall& call) {
  readers.catch_up();
  if (readers.empty()) return;
  for_each_argument_tensor(call, [&](size_t i, const at::Tensor& tensor) {
    if (call.writes_argument(i) && tensor.has_storage() && !is_of_python_class(tensor))
      readers.hand_over(tensor);
  });
}

}  // namespace remat
