// SPDX-License-Identifier: BSD-3-Clause

// Moves storages out of the device. See Note [Moving] in mover.h.
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "mover.h"
#include "tickets.h"

#include <remat/engine/saved_tensors_hooks.h>

namespace remat::detail {
namespace {

constexpr size_t kExaminedPerPut = 8;
// Limit on the bytes of queued copies: enough to keep the link busy between two puts, and few to
// waste when backward begins, because a copy queued on a device cannot be cancelled.
constexpr int64_t kMaxQueuedBytes = int64_t{256} << 20;

bool is_alone(const at::Storage& storage) {
  return storage.use_count() == 1;
}

/// "region 'block', call 'attention' (4096 bytes)"
std::string describe(const SavedTensorInfo* info, int64_t bytes) {
  const std::string region = info ? info->region : "";
  const std::string call = info ? info->call : "";
  return c10::str(region.empty() ? "region without a name" : "region '" + region + "'",
                  call.empty() ? "" : ", call '" + call + "'", " (", bytes, " bytes)");
}

}  // namespace

Mover::Mover(OffloadOptions options) : options_(std::move(options)) {}

void Mover::settle(Garbage& garbage) {
  settle_leaving(garbage);
  settle_retired(garbage);
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
    if (full_) full.swap(*full_);
    if (options_.when_full == WhenFull::kRaise) full_.reset();
  }
  if (!full.empty()) report_full(full);
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
  moved->description = describe(saved_tensor_info_in_pack(), moved->bytes);
  order_.put(*moved);
  here_[moved->here.unsafeGetStorageImpl()] = moved;
  waiting_.emplace(moved->sequence, moved.get());
  return moved;
}

// Sends only storages that nobody else holds, because moving others would free nothing. Each call
// looks at a few storages only, because some programs have many long-lived ones. With a limit on
// leaving bytes, each call looks at all waiting storages, so that the peak is guaranteed: put()
// waits while the bytes exceed the limit.
void Mover::send_waiting() {
  const bool is_limited = options_.max_leaving_bytes < OffloadOptions{}.max_leaving_bytes;
  const size_t most = is_limited ? waiting_.size() : std::min(kExaminedPerPut, waiting_.size());
  auto next = is_limited ? waiting_.begin() : waiting_.lower_bound(next_looked_at_);
  for (size_t i = 0; i < most && (is_limited || stats_.leaving_bytes < kMaxQueuedBytes); ++i) {
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
      moved.out.copy = block->write(moved.here, moved.computed);
    } catch (const std::exception& error) {
      moved.out.failure = c10::str(", ", memory.name(), " failed: ", first_line(error));
      continue;
    }
    moved.out.block = std::move(block);
    moved.out.memory = i;
    moved.whereabouts = Whereabouts::kLeaving;
    leaving_.push_back(&moved);
    stats_.leaving_bytes += moved.bytes;
    stats_.away_bytes += moved.bytes;
    return true;
  }
  return false;
}

// Nothing may throw or warn while storages move, so the next put() reports that no memory had room.
void Mover::note_full(const MovedStorage& moved) {
  ++stats_.full_count;
  if (full_) return;
  std::string names;
  for (const auto& memory : options_.memories)
    names += (names.empty() ? "" : ", ") + memory->name();
  full_ = c10::str("[offload] ", moved.description, ": expected room in ", names, ", got none",
                   moved.out.failure);
}

void Mover::report_full(const std::string& full) const {
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
        first = moved->out.copy;
        if (first) break;
      }
    }
    const auto clock = wait_clock();
    wait_quietly(first);
  }
}

void Mover::settle_leaving(Garbage& garbage) {
  const std::deque<MovedStorage*> leaving = std::exchange(leaving_, {});
  for (MovedStorage* const moved : leaving) {
    if (is_pending(moved->out.copy)) {
      leaving_.push_back(moved);
      continue;
    }
    if (moved->out.copy && !settle_left(*moved, garbage)) continue;
    if (moved->is_next) {
      leaving_.push_back(moved);
      continue;
    }
    const bool has_others = !is_alone(moved->here);
    garbage.push_back({.until = {}, .storage = hand_over(*moved), .block = {}});
    if (!has_others) moved->back.given.reset();  // the caller frees the storage with `garbage`
  }
}

// Takes the mover's reference to a storage that has left, and returns it. Others may hold the
// storage.
at::Storage Mover::hand_over(MovedStorage& moved) {
  forget_here(moved);
  moved.back.given = c10::weak_intrusive_ptr<c10::StorageImpl>(moved.here.getWeakStorageImpl());
  moved.whereabouts = Whereabouts::kAway;
  return std::move(moved.here);
}

bool Mover::settle_left(MovedStorage& moved, Garbage& garbage) {
  stats_.leaving_bytes -= moved.bytes;
  try {
    std::exchange(moved.out.copy, nullptr)->wait();
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
  garbage.push_back({.until = {}, .storage = {}, .block = std::move(moved.out.block)});
  moved.out.failure = c10::str(", ", memory_of(moved).name(), " failed: ", first_line(error));
  if (!send(moved, moved.out.memory + 1)) note_full(moved);
}

}  // namespace remat::detail
