// SPDX-License-Identifier: BSD-3-Clause

// Brings storages back, ahead of time or on demand, or drops them. See Note [Moving] in mover.h.
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <optional>
#include <utility>

#include "mover.h"

namespace remat::detail {
namespace {

constexpr size_t kLookedAhead = 64;

// True if prefetch() can bring the storage to the device, or keep it there.
bool may_come(const MovedStorage& moved) {
  if (moved.whereabouts == Whereabouts::kLeaving) return !moved.is_next;
  return moved.whereabouts == Whereabouts::kAway && moved.back.given.expired();
}

}  // namespace

std::pair<at::Storage, std::optional<c10::VariableVersion>> Mover::give(MovedStorage& moved) {
  at::Storage storage;
  CopyEventPtr back;
  std::optional<c10::VariableVersion> version;
  {
    Garbage garbage;  // freed before anything is fetched
    const Lock lock(mutex_);
    settle(garbage);
  }
  {
    const Lock lock(mutex_);
    const bool is_of_step = order_.got(moved);
    storage = give_or_fetch(moved);
    back = moved.back.copy;
    if (back) version = moved.back.version;
    if (is_of_step) prefetch();
  }
  if (back) hold_compute(moved, back, storage);
  return {std::move(storage), std::move(version)};
}

at::Storage Mover::give_or_fetch(MovedStorage& moved) {
  if (moved.whereabouts == Whereabouts::kComing) return give_coming(moved);
  if (moved.whereabouts != Whereabouts::kAway) {
    if (moved.whereabouts != Whereabouts::kStays) ++stats_.stayed_count;
    moved.is_next = false;
    if (moved.whereabouts != Whereabouts::kLeaving || moved.out.copy) return moved.here;
    leaving_.erase(std::find(leaving_.begin(), leaving_.end(), &moved));
    return hand_over(moved);
  }
  // If the storage that give() returned last is still alive and unwritten, returns it again.
  const bool is_as_given = moved.back.version.current_version() == 0;
  if (auto given = moved.back.given.lock(); given && is_as_given)
    return at::Storage(std::move(given));
  // Frees the prefetched storages, if they and `moved`, which is none of them, exceed the limit.
  if (coming_bytes() + moved.bytes > options_.prefetch_bytes) free_coming();
  at::Storage storage = fetch_with_room(moved);
  moved.back.given = c10::weak_intrusive_ptr<c10::StorageImpl>(storage.getWeakStorageImpl());
  return storage;
}

at::Storage Mover::give_coming(MovedStorage& moved) {
  at::Storage storage = std::move(moved.here);
  moved.back.given = c10::weak_intrusive_ptr<c10::StorageImpl>(storage.getWeakStorageImpl());
  moved.whereabouts = Whereabouts::kAway;
  coming_.erase(std::find(coming_.begin(), coming_.end(), &moved));
  return storage;
}

at::Storage Mover::fetch(MovedStorage& moved) {
  CopyLink& link = memory_of(moved).link();
  at::Storage storage = link.allocate(moved.bytes, moved.device);
  moved.back.version = c10::VariableVersion(0);
  moved.back.stream = link.stream(moved.device);
  moved.back.copy = moved.out.block->read(storage, link.computed_so_far(moved.device));
  stats_.fetched_bytes += moved.bytes;
  ++stats_.fetched_count;
  return storage;
}

// If memory runs out, frees the prefetched storages, which can be fetched again, and retries.
at::Storage Mover::fetch_with_room(MovedStorage& moved) {
  try {
    return fetch(moved);
  } catch (const c10::OutOfMemoryError&) {
    if (coming_.empty()) throw;
  }
  free_coming();
  return fetch(moved);
}

// Waits for the copies that fill prefetched storages, so that the memory is free when this returns.
void Mover::free_coming() {
  Garbage garbage;
  for (MovedStorage* const moved : coming_) {
    wait_quietly(moved->back.copy);
    moved->whereabouts = Whereabouts::kAway;
    garbage.push_back({.until = {}, .storage = std::move(moved->here), .block = {}});
  }
  stats_.unused_count += static_cast<int64_t>(coming_.size());
  coming_.clear();
  for (MovedStorage* const moved : leaving_) moved->is_next = false;
}

int64_t Mover::coming_bytes() const {
  int64_t bytes = 0;
  for (const MovedStorage* const moved : coming_) bytes += moved->bytes;
  // A leaving storage that stays because it is_next counts as prefetched.
  for (const MovedStorage* const moved : leaving_) bytes += moved->is_next ? moved->bytes : 0;
  return bytes;
}

void Mover::prefetch() {
  int64_t coming = coming_bytes();
  for (size_t skipped = 0; skipped < kLookedAhead; ++skipped) {
    const std::optional<MovedStorage*> next = order_.next(skipped);
    if (!next) return;
    MovedStorage* const moved = *next;
    if (!moved || !may_come(*moved)) continue;
    if (coming + moved->bytes > options_.prefetch_bytes) return;
    coming += moved->bytes;
    if (moved->whereabouts == Whereabouts::kLeaving) {
      moved->is_next = true;
      continue;
    }
    try {
      moved->here = fetch(*moved);
    } catch (const std::exception&) {
      return;  // get() fetches the storage again and reports the error
    }
    moved->whereabouts = Whereabouts::kComing;
    coming_.push_back(moved);
    ++stats_.prefetched_count;
  }
}

// Called without the mutex, because the host may have to wait for `back`.
void Mover::hold_compute(MovedStorage& moved, const CopyEventPtr& back,
                         const at::Storage& storage) {
  const auto clock = wait_clock();
  CopyLink& link = memory_of(moved).link();
  try {
    link.hold_compute(back, moved.device);
  } catch (const std::exception& error) {
    const Lock lock(mutex_);
    moved.back.given.reset();
    TORCH_CHECK(false, "[offload] ", moved.description, ": expected ", memory_of(moved).name(),
                " to give it back, got: ", first_line(error),
                ". Its values are lost; the step cannot be finished.");
  }
  if (link.stream(moved.device) != moved.back.stream) link.share(storage);
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
      leaving_.erase(std::find(leaving_.begin(), leaving_.end(), &moved));
      if (moved.out.copy) stats_.leaving_bytes -= moved.bytes;
      break;
    case Whereabouts::kComing:
      coming_.erase(std::find(coming_.begin(), coming_.end(), &moved));
      ++stats_.unused_count;
      break;
    case Whereabouts::kAway:
    case Whereabouts::kStays:
      break;
  }
  if (moved.out.block) stats_.away_bytes -= moved.bytes;
  CopyEventPtr until = moved.out.copy ? moved.out.copy : moved.back.copy;
  forget_here(moved);
  retire({std::move(until), std::move(moved.here), std::move(moved.out.block)}, garbage);
  settle_retired(garbage);
  order_.drop(moved);
}

// Removes `moved` from here_, unless a later put() of the same memory has replaced the entry.
void Mover::forget_here(const MovedStorage& moved) {
  if (!moved.here || moved.whereabouts == Whereabouts::kComing) return;
  const auto entry = here_.find(moved.here.unsafeGetStorageImpl());
  if (entry != here_.end() && entry->second.get() == &moved) here_.erase(entry);
}

Mover::~Mover() {
  for (const Retired& retired : retired_) wait_quietly(retired.until);
}

// Follows rules 6 to 8 of Note [Moving]: keeps what a pending copy uses, but not a storage whose
// allocator knows of the copy.
void Mover::retire(Retired retired, Garbage& garbage) {
  if (!is_pending(retired.until)) {
    garbage.push_back(std::move(retired));
    return;
  }
  if (retired.storage && retired.until->may_go(retired.storage))
    garbage.push_back({.until = {}, .storage = std::move(retired.storage), .block = {}});
  retired_.push_back(std::move(retired));
}

void Mover::settle_retired(Garbage& garbage) {
  const auto done = std::partition(retired_.begin(), retired_.end(), [](const Retired& retired) {
    return is_pending(retired.until);
  });
  std::move(done, retired_.end(), std::back_inserter(garbage));
  retired_.erase(done, retired_.end());
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
