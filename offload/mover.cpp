// SPDX-License-Identifier: BSD-3-Clause

// Note [Moving] in mover.h.
#include "mover.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include <remat/tape/saved_tensors_hooks.h>

namespace remat::detail {
namespace {

constexpr size_t kLookedAtPerPut = 8;
constexpr size_t kLookedAhead = 64;
// What the link is given ahead: enough to be busy between two puts, and little that is for nothing
// when backward begins, as a copy that a device has been given cannot be taken back.
constexpr int64_t kMostGivenBytes = int64_t{256} << 20;
constexpr size_t kMostNumbers = size_t{1} << 16;

bool is_pending(const CopyEventPtr& event) {
  return event && !event->is_done();
}

std::string first_line(const std::exception& error) {
  const std::string_view text = error.what();
  return std::string(text.substr(0, text.find('\n')));
}

void wait_quietly(const CopyEventPtr& event) {
  try {
    if (event) event->wait();
  } catch (const std::exception&) {
    // Who asks for the storage hears of it.
  }
}

uint32_t version_of(const at::Tensor& tensor) {
  return tensor.is_inference() ? 0 : static_cast<uint32_t>(tensor._version());
}

// To the device, or to stay there.
bool may_come(const MovedStorage& moved) {
  if (moved.whereabouts == Whereabouts::kLeaving) return !moved.is_next;
  return moved.whereabouts == Whereabouts::kAway && moved.given.expired();
}

bool is_alone(const at::Storage& storage) {
  return storage.use_count() == 1;
}

}  // namespace

// Adds what its scope takes to the time that threads have waited.
class Mover::WaitClock {
 public:
  explicit WaitClock(Mover& mover) : mover_(mover) {}
  WaitClock(const WaitClock&) = delete;
  WaitClock& operator=(const WaitClock&) = delete;
  ~WaitClock() {
    const std::chrono::duration<double, std::micro> time =
        std::chrono::steady_clock::now() - begin_;
    const Lock lock(mover_.mutex_);
    mover_.stats_.waited_us += time.count();
  }

 private:
  Mover& mover_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

Mover::Mover(OffloadOptions options) : options_(std::move(options)) {}

Mover::~Mover() {
  for (const Retired& retired : retired_) wait_quietly(retired.until);
}

std::shared_ptr<MovedStorage> Mover::take(const at::Tensor& tensor) {
  std::string full;
  bool is_over = false;
  {
    Garbage garbage;
    const Lock lock(mutex_);
    settle(garbage);
    send_waiting();
    is_over = stats_.leaving_bytes > options_.max_leaving_bytes;
    full.swap(full_);
    is_full_told_ = is_full_told_ || (!full.empty() && options_.when_full == WhenFull::kKeep);
  }
  if (!full.empty()) tell(full);
  if (is_over) wait_for_leaving();
  const Lock lock(mutex_);
  std::shared_ptr<MovedStorage> moved = find(tensor);
  if (!moved) return add(tensor);
  ++moved->tickets;
  return moved;
}

std::shared_ptr<MovedStorage> Mover::find(const at::Tensor& tensor) const {
  const auto entry = here_.find(tensor.storage().unsafeGetStorageImpl());
  if (entry == here_.end()) return nullptr;
  const bool is_same = entry->second->version == version_of(tensor);
  return is_same ? entry->second : nullptr;
}

std::shared_ptr<MovedStorage> Mover::add(const at::Tensor& tensor) {
  const auto moved = std::make_shared<MovedStorage>();
  moved->here = tensor.storage();
  moved->device = tensor.device();
  moved->bytes = static_cast<int64_t>(moved->here.nbytes());
  moved->version = version_of(tensor);
  moved->computed = options_.memories.front()->link().computed_so_far(moved->device);
  if (const SavedTensorInfo* const info = saved_tensor_info_in_pack()) {
    moved->region = info->region;
    moved->call = info->call;
  }
  moved->sequence = next_sequence_++;
  if (order_.size() >= kMostNumbers) {
    order_.forget();
    numbered_.clear();
    first_of_step_ = moved->sequence;
  }
  moved->number = order_.put(moved->bytes);
  numbered_.push_back(moved.get());
  ++live_;
  here_[moved->here.unsafeGetStorageImpl()] = moved;
  waiting_.emplace(moved->sequence, moved.get());
  return moved;
}

// A storage that others have too would free nothing. Few are looked at each time: those that live
// on for long are many in some programs. With a limit for what leaves all are: the peak is what is
// promised then, and put() waits for what is too much.
void Mover::send_waiting() {
  const bool is_limited = options_.max_leaving_bytes < OffloadOptions{}.max_leaving_bytes;
  const size_t most = is_limited ? waiting_.size() : std::min(kLookedAtPerPut, waiting_.size());
  auto next = is_limited ? waiting_.begin() : waiting_.lower_bound(next_looked_at_);
  for (size_t i = 0; i < most && (is_limited || stats_.leaving_bytes < kMostGivenBytes); ++i) {
    if (next == waiting_.end()) next = waiting_.begin();
    MovedStorage& moved = *next->second;
    if (is_alone(moved.here)) {
      next = waiting_.erase(next);
      if (!send(moved, 0)) note_full(moved);
    } else {
      ++next;
    }
  }
  next_looked_at_ = next == waiting_.end() ? 0 : next->first;
}

bool Mover::send(MovedStorage& moved, size_t first_memory) {
  moved.whereabouts = Whereabouts::kStays;
  const bool has_size = static_cast<int64_t>(moved.here.nbytes()) == moved.bytes;
  if (!has_size || stats_.away_bytes + moved.bytes > options_.max_bytes) return true;
  for (size_t i = first_memory; i < options_.memories.size(); ++i) {
    OffloadMemory& memory = *options_.memories[i];
    std::unique_ptr<OffloadMemory::Block> block = memory.take(moved.bytes, moved.device);
    if (!block) continue;
    try {
      moved.left = block->write(moved.here, moved.computed);
    } catch (const std::exception& error) {
      moved.failure = c10::str(", ", memory.name(), " failed: ", first_line(error));
      continue;
    }
    moved.block = std::move(block);
    moved.memory = &memory;
    moved.memory_number = i;
    moved.whereabouts = Whereabouts::kLeaving;
    leaving_.push_back(&moved);
    stats_.leaving_bytes += moved.bytes;
    stats_.away_bytes += moved.bytes;
    return true;
  }
  return false;
}

// Said by the next put(): nothing is thrown or warned of while storages move.
void Mover::note_full(const MovedStorage& moved) {
  ++stats_.full_count;
  if (!full_.empty() || is_full_told_) return;
  std::string names;
  for (const auto& memory : options_.memories)
    names += (names.empty() ? "" : ", ") + memory->name();
  full_ = c10::str("[offload] ", moved.what(), ": expected room in ", names, ", got none",
                   moved.failure);
}

void Mover::tell(const std::string& full) {
  TORCH_CHECK(options_.when_full == WhenFull::kKeep, full,
              ". Give it more room, or let when_full be kKeep (\"keep\" in Python).");
  TORCH_WARN(full, ". It stays where it is, as all will for which there is no room.");
}

void Mover::wait_for_leaving() {
  while (true) {
    Garbage garbage;
    CopyEventPtr first;
    {
      const Lock lock(mutex_);
      settle(garbage);
      if (stats_.leaving_bytes <= options_.max_leaving_bytes) return;
      for (const MovedStorage* const moved : leaving_) {
        first = moved->left;
        if (first) break;
      }
    }
    const WaitClock clock(*this);
    wait_quietly(first);
  }
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

void Mover::settle_leaving(Garbage& garbage) {
  const std::deque<MovedStorage*> leaving = std::exchange(leaving_, {});
  for (MovedStorage* const moved : leaving) {
    if (is_pending(moved->left)) {
      leaving_.push_back(moved);
      continue;
    }
    if (moved->left && !settle_left(*moved, garbage)) continue;
    if (moved->is_next) {
      leaving_.push_back(moved);
      continue;
    }
    const bool has_others = !is_alone(moved->here);
    garbage.storages.push_back(hand_over(*moved));
    if (!has_others) moved->given.reset();  // It is gone when the caller has settled.
  }
}

// It has left: from here on those have it who have asked for it, if any.
at::Storage Mover::hand_over(MovedStorage& moved) {
  forget_here(moved);
  moved.given = c10::weak_intrusive_ptr<c10::StorageImpl>(moved.here.getWeakStorageImpl());
  moved.whereabouts = Whereabouts::kAway;
  return std::move(moved.here);
}

bool Mover::settle_left(MovedStorage& moved, Garbage& garbage) {
  stats_.leaving_bytes -= moved.bytes;
  try {
    std::exchange(moved.left, nullptr)->wait();
  } catch (const std::exception& error) {
    settle_failed(moved, error, garbage);
    return false;
  }
  stats_.left_bytes += moved.bytes;
  ++stats_.left_count;
  return true;
}

void Mover::settle_failed(MovedStorage& moved, const std::exception& error, Garbage& garbage) {
  stats_.away_bytes -= moved.bytes;
  garbage.blocks.push_back(std::move(moved.block));
  moved.failure = c10::str(", ", moved.memory->name(), " failed: ", first_line(error));
  if (!send(moved, moved.memory_number + 1)) note_full(moved);
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

Mover::Given Mover::give(MovedStorage& moved) {
  at::Storage storage;
  CopyEventPtr back;
  std::optional<c10::VariableVersion> version;
  settle();  // Gone before anything is fetched
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
  // Unless somebody has written it since.
  const bool is_as_given = moved.given_version.current_version() == 0;
  if (auto given = moved.given.lock(); given && is_as_given) return at::Storage(std::move(given));
  // What was fetched is not what is asked for.
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

// Backward needs this one; those that were fetched ahead can come again.
at::Storage Mover::fetch_with_room(MovedStorage& moved) {
  try {
    return fetch(moved);
  } catch (const c10::OutOfMemoryError&) {
    if (coming_.empty()) throw;
  }
  free_coming();
  return fetch(moved);
}

// Before anything else is fetched: their memory is in use as long as copies fill it.
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
      return;  // It is fetched again when it is asked for, which says what is wrong.
    }
    moved->whereabouts = Whereabouts::kComing;
    coming_.push_back(moved);
    coming_bytes_ += moved->bytes;
    ++stats_.prefetched_count;
  }
}

// On the way out: what has not left need not come back.
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

// Not under the mutex: the host may have to wait.
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

// A storage whose tensor was written is there once more, under the same address.
void Mover::forget_here(const MovedStorage& moved) {
  if (!moved.here || moved.whereabouts == Whereabouts::kComing) return;
  const auto entry = here_.find(moved.here.unsafeGetStorageImpl());
  if (entry != here_.end() && entry->second.get() == &moved) here_.erase(entry);
}

void Mover::retire(CopyEventPtr until, at::Storage storage,
                   std::unique_ptr<OffloadMemory::Block> block, Garbage& garbage) {
  if (is_pending(until)) {
    retired_.push_back({std::move(until), std::move(storage), std::move(block)});
    return;
  }
  garbage.storages.push_back(std::move(storage));
  garbage.blocks.push_back(std::move(block));
}

void Mover::end_number(const MovedStorage& moved) {
  --live_;
  if (moved.sequence >= first_of_step_) numbered_[moved.number] = nullptr;
  if (live_ > 0) return;
  order_.end_step();
  numbered_.clear();
  first_of_step_ = next_sequence_;
}

OffloadStats Mover::stats() const {
  const Lock lock(mutex_);
  return stats_;
}

}  // namespace remat::detail
