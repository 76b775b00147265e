// SPDX-License-Identifier: BSD-3-Clause

// The mover's state changes: Note [Moving] in mover.h. mover_out.cpp and mover_in.cpp have the two
// directions.
#include "mover.h"

#include <algorithm>
#include <utility>

#include "copy_waits.h"

namespace remat::detail {

Mover::Mover(OffloadOptions options) : options_(std::move(options)) {}

Mover::~Mover() {
  for (const Retired& retired : retired_) wait_quietly(retired.until);
}

void Mover::settle() {
  Garbage garbage;
  const Lock lock(mutex_);
  settle(garbage);
}

void Mover::settle(Garbage& garbage) {
  settle_leaving(garbage);
  settle_retired(garbage);
}

void Mover::settle_retired(Garbage& garbage) {
  const auto done = std::partition(retired_.begin(), retired_.end(), [](const Retired& retired) {
    return is_pending(retired.until);
  });
  for (auto retired = done; retired != retired_.end(); ++retired) {
    garbage.storages.push_back(std::move(retired->storage));
    garbage.blocks.push_back(std::move(retired->block));
  }
  retired_.erase(done, retired_.end());
}

void Mover::drop(MovedStorage& moved) {
  Garbage garbage;
  const Lock lock(mutex_);
  if (--moved.tickets > 0) return;
  switch (moved.whereabouts) {
    case Whereabouts::kWaiting:
      waiting_.erase(moved.sequence);
      break;
    case Whereabouts::kLeaving:
      set_next(moved, false);
      leaving_.erase(std::find(leaving_.begin(), leaving_.end(), &moved));
      if (moved.left) stats_.leaving_bytes -= moved.bytes;
      break;
    case Whereabouts::kComing:
      coming_.erase(std::find(coming_.begin(), coming_.end(), &moved));
      coming_bytes_ -= moved.bytes;
      ++stats_.unused_count;
      break;
    case Whereabouts::kAway:
    case Whereabouts::kStays:
      break;
  }
  if (moved.block) stats_.away_bytes -= moved.bytes;
  CopyEventPtr until = moved.left ? moved.left : moved.back;
  forget_here(moved);
  retire(std::move(until), std::move(moved.here), std::move(moved.block), garbage);
  settle_retired(garbage);
  end_number(moved);
}

// A storage whose tensor was written has a second entry under the same address.
void Mover::forget_here(const MovedStorage& moved) {
  if (!moved.here || moved.whereabouts == Whereabouts::kComing) return;
  const auto entry = here_.find(moved.here.unsafeGetStorageImpl());
  if (entry != here_.end() && entry->second.get() == &moved) here_.erase(entry);
}

void Mover::retire(CopyEventPtr until, at::Storage storage,
                   std::unique_ptr<OffloadMemory::Block> block, Garbage& garbage) {
  if (!is_pending(until) || (storage && until->may_go(storage)))
    garbage.storages.push_back(std::move(storage));
  if (is_pending(until)) {
    retired_.push_back({std::move(until), std::move(storage), std::move(block)});
  } else {
    garbage.blocks.push_back(std::move(block));
  }
}

void Mover::end_number(const MovedStorage& moved) {
  --live_;
  if (moved.sequence >= first_of_step_) numbered_[moved.number] = nullptr;
  if (live_ > 0) return;
  order_.end_step();
  numbered_.clear();
  first_of_step_ = next_sequence_;
}

OffloadStats Mover::stats() {
  Garbage garbage;
  const Lock lock(mutex_);
  settle(garbage);
  OffloadStats stats = stats_;
  for (const auto& [storage, moved] : here_) stats.device_bytes += moved->bytes;
  for (const MovedStorage* const moved : coming_) stats.device_bytes += moved->bytes;
  for (const Retired& retired : retired_) {
    if (retired.storage) stats.device_bytes += static_cast<int64_t>(retired.storage.nbytes());
  }
  return stats;
}

}  // namespace remat::detail
