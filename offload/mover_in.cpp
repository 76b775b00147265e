// SPDX-License-Identifier: BSD-3-Clause

// Storages that return, prefetched or on demand: Note [Moving] in mover.h.
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "copy_waits.h"
#include "mover.h"

namespace remat::detail {
namespace {

constexpr size_t kLookedAhead = 64;

// True if prefetching would bring it to the device, or keep it there.
bool may_come(const MovedStorage& moved) {
  if (moved.whereabouts == Whereabouts::kLeaving) return !moved.is_next;
  return moved.whereabouts == Whereabouts::kAway && moved.given.expired();
}

}  // namespace

Mover::Given Mover::give(MovedStorage& moved) {
  at::Storage storage;
  CopyEventPtr back;
  std::optional<c10::VariableVersion> version;
  settle();  // frees memory before anything is fetched
  {
    const Lock lock(mutex_);
    const bool is_numbered = moved.sequence >= first_of_step_;
    if (is_numbered) order_.got(moved.number);
    storage = give_or_fetch(moved);
    back = moved.back;
    if (back) version = moved.given_version;
    if (is_numbered) prefetch();
  }
  if (back) hold_compute(moved, back, storage);
  return {std::move(storage), std::move(version)};
}

at::Storage Mover::give_or_fetch(MovedStorage& moved) {
  if (moved.whereabouts == Whereabouts::kComing) return give_coming(moved);
  if (moved.whereabouts != Whereabouts::kAway) {
    if (moved.whereabouts != Whereabouts::kStays) ++stats_.stayed_count;
    set_next(moved, false);
    if (moved.whereabouts != Whereabouts::kLeaving || moved.left) return moved.here;
    leaving_.erase(std::find(leaving_.begin(), leaving_.end(), &moved));
    return hand_over(moved);
  }
  // Unless it has been written since.
  const bool is_as_given = moved.given_version.current_version() == 0;
  if (auto given = moved.given.lock(); given && is_as_given) return at::Storage(std::move(given));
  // The prefetched storages are not the one that is needed.
  if (coming_bytes_ + moved.bytes > options_.prefetch_bytes) free_coming();
  at::Storage storage = fetch_with_room(moved);
  moved.given = c10::weak_intrusive_ptr<c10::StorageImpl>(storage.getWeakStorageImpl());
  return storage;
}

at::Storage Mover::give_coming(MovedStorage& moved) {
  at::Storage storage = std::move(moved.here);
  moved.given = c10::weak_intrusive_ptr<c10::StorageImpl>(storage.getWeakStorageImpl());
  moved.whereabouts = Whereabouts::kAway;
  coming_.erase(std::find(coming_.begin(), coming_.end(), &moved));
  coming_bytes_ -= moved.bytes;
  return storage;
}

at::Storage Mover::fetch(MovedStorage& moved) {
  CopyLink& link = moved.memory->link();
  at::Storage storage = link.allocate(moved.bytes, moved.device);
  moved.given_version = c10::VariableVersion(0);
  moved.back_stream = link.stream(moved.device);
  moved.back = moved.block->read(storage, link.computed_so_far(moved.device));
  stats_.fetched_bytes += moved.bytes;
  ++stats_.fetched_count;
  return storage;
}

// Backward needs this storage; prefetched ones can be fetched again.
at::Storage Mover::fetch_with_room(MovedStorage& moved) {
  try {
    return fetch(moved);
  } catch (const c10::OutOfMemoryError&) {
    if (coming_.empty()) throw;
  }
  free_coming();
  return fetch(moved);
}

// Waits before anything else is fetched: the memory is in use while copies fill it.
void Mover::free_coming() {
  Garbage garbage;
  for (const MovedStorage* const moved : coming_) wait_quietly(moved->back);
  forget_coming(garbage);
}

void Mover::prefetch() {
  for (size_t skipped = 0; skipped < kLookedAhead; ++skipped) {
    const std::optional<size_t> next = order_.next(skipped);
    if (!next) return;
    MovedStorage* const moved = numbered_[*next];
    if (!moved || !may_come(*moved)) continue;
    if (coming_bytes_ + moved->bytes > options_.prefetch_bytes) return;
    if (moved->whereabouts == Whereabouts::kLeaving) {
      set_next(*moved, true);
      continue;
    }
    try {
      moved->here = fetch(*moved);
    } catch (const std::exception&) {
      return;  // get() fetches it again and reports the error
    }
    moved->whereabouts = Whereabouts::kComing;
    coming_.push_back(moved);
    coming_bytes_ += moved->bytes;
    ++stats_.prefetched_count;
  }
}

// For storages on their way out: one that has not left need not return.
void Mover::set_next(MovedStorage& moved, bool is_next) {
  if (moved.is_next == is_next) return;
  moved.is_next = is_next;
  coming_bytes_ += is_next ? moved.bytes : -moved.bytes;
}

void Mover::forget_coming(Garbage& garbage) {
  for (MovedStorage* const moved : coming_) {
    moved->whereabouts = Whereabouts::kAway;
    retire(moved->back, std::move(moved->here), nullptr, garbage);
  }
  stats_.unused_count += static_cast<int64_t>(coming_.size());
  coming_.clear();
  for (MovedStorage* const moved : leaving_) moved->is_next = false;
  coming_bytes_ = 0;
}

// Not under the mutex, since the host may have to wait.
void Mover::hold_compute(MovedStorage& moved, const CopyEventPtr& back,
                         const at::Storage& storage) {
  const WaitClock clock(*this);
  CopyLink& link = moved.memory->link();
  try {
    link.hold_compute(back, moved.device);
  } catch (const std::exception& error) {
    const Lock lock(mutex_);
    moved.given.reset();
    TORCH_CHECK(false, "[offload] ", moved.what(), ": expected ", moved.memory->name(),
                " to give it back, got: ", first_line(error),
                ". Its values are lost; the step cannot be finished.");
  }
  if (link.stream(moved.device) != moved.back_stream) link.share(storage);
}

}  // namespace remat::detail
