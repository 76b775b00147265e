// SPDX-License-Identifier: BSD-3-Clause

// The part of the engine that decides which storage leaves or returns, and when.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ScopeExit.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "moved_storage.h"

#include <remat/engine/blocking_wait.h>
#include <remat/offload/offload_engine.h>

namespace remat::detail {

/// A mutex whose holder may wait for the lock of the host language (Python's GIL). So a thread that
/// finds the mutex taken releases that lock while it waits. Taking a free mutex costs one exchange.
/// Not std::mutex with try_lock(), which needs a newer glibc than wheels are built for.
class WaitMutex {
 public:
  void lock() {
    if (!is_taken_.exchange(true)) return;
    ++waiting_;
    blocking_wait([this] {
      std::unique_lock lock(mutex_);
      freed_.wait(lock, [this] { return !is_taken_.exchange(true); });
    });
    --waiting_;
  }

  void unlock() {
    is_taken_ = false;
    // A thread that increments waiting_ after this check finds the mutex free.
    if (waiting_ == 0) return;
    { const std::lock_guard lock(mutex_); }
    freed_.notify_one();
  }

 private:
  std::atomic<bool> is_taken_ = false;
  std::atomic<int> waiting_ = 0;
  std::mutex mutex_;
  std::condition_variable freed_;
};

inline bool is_pending(const CopyEventPtr& event) {
  return event && !event->is_done();
}

inline void wait_quietly(const CopyEventPtr& event) {
  try {
    if (event) event->wait();
  } catch (const std::exception&) {
    // Code that later needs the storage gets the error.
  }
}

inline std::string first_line(const std::exception& error) {
  const std::string_view text = error.what();
  return std::string(text.substr(0, text.find('\n')));
}

/// Memory that is no longer needed: a storage and a block, either of which may be null.
struct Retired {
  CopyEventPtr until;  ///< The last copy that uses them
  at::Storage storage;
  std::unique_ptr<OffloadMemory::Block> block;
};

/// Objects to destroy after unlocking the mover's mutex, because destructors may run any code.
using Garbage = std::vector<Retired>;

/// Note [Moving]
/// Three queues may work on a storage: compute, the copy out and the copy in. These rules keep a
/// queue from memory that another queue still uses:
///   1. the copy out waits for the compute that was queued when the storage was put;
///   2. the storage's memory is freed when the host sees that the copy out is done;
///   3. the copy in waits for the compute that was queued when its memory was allocated, since
///      earlier compute may still use that memory;
///   4. the copy in begins when the copy out is done;
///   5. compute waits for the copy in, on every stream that asks for the storage;
///   6. a block is reused when all copies from and to it are done;
///   7. memory that a copy in fills stays until the copy is done, even if it is no longer needed;
///   8. memory that is no longer needed but in use by a copy goes back to its allocator at once, if
///      the allocator can be told of the copy (CopyEvent::may_go); otherwise it stays until the
///      copy is done and the mover is called again.
/// Copies in are first in, first out, so the last copy from a block finishes after all others.
class Mover {
 public:
  explicit Mover(OffloadOptions options);
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;
  ~Mover();

  /// The storage of `tensor`, with one more ticket. Tensors that share a storage share one entry.
  /// Throws the errors of OffloadStore::put().
  std::shared_ptr<MovedStorage> take(const at::Tensor& tensor);
  /// Returns a storage for use on the calling thread's stream. It is the one that was put, or a
  /// copy and the version counter that all users of the copy share.
  std::pair<at::Storage, std::optional<c10::VariableVersion>> give(MovedStorage& moved);
  /// Releases a ticket.
  void drop(MovedStorage& moved);

  /// Frees storages and blocks whose copies are done, and returns the totals.
  OffloadStats stats();

 private:
  using Lock = std::lock_guard<WaitMutex>;

  /// Adds the lifetime of the returned object to OffloadStats::waited_us.
  auto wait_clock() {
    return c10::make_scope_exit([this, begin = std::chrono::steady_clock::now()] {
      const std::chrono::duration<double, std::micro> time =
          std::chrono::steady_clock::now() - begin;
      const Lock lock(mutex_);
      stats_.waited_us += time.count();
    });
  }

  OffloadMemory& memory_of(const MovedStorage& moved) const {
    return *options_.memories[moved.out.memory];
  }

  std::shared_ptr<MovedStorage> find(const at::Tensor& tensor) const;
  std::shared_ptr<MovedStorage> add(const at::Tensor& tensor);
  void send_waiting();
  bool send(MovedStorage& moved, size_t first_memory);
  void note_full(const MovedStorage& moved);
  void report_full(const std::string& full) const;
  void wait_for_leaving();

  void settle(Garbage& garbage);
  void settle_leaving(Garbage& garbage);
  bool settle_left(MovedStorage& moved, Garbage& garbage);
  void settle_failed(MovedStorage& moved, const std::exception& error, Garbage& garbage);
  at::Storage hand_over(MovedStorage& moved);

  at::Storage give_or_fetch(MovedStorage& moved);
  at::Storage give_coming(MovedStorage& moved);
  at::Storage fetch(MovedStorage& moved);
  at::Storage fetch_with_room(MovedStorage& moved);
  void prefetch();
  int64_t coming_bytes() const;
  void free_coming();
  void hold_compute(MovedStorage& moved, const CopyEventPtr& back, const at::Storage& storage);

  void forget_here(const MovedStorage& moved);
  void retire(Retired retired, Garbage& garbage);
  void settle_retired(Garbage& garbage);

  OffloadOptions options_;
  mutable WaitMutex mutex_;
  // Storages that have not left the device, by address.
  std::unordered_map<const c10::StorageImpl*, std::shared_ptr<MovedStorage>> here_;
  std::map<uint64_t, MovedStorage*> waiting_;  // by sequence
  uint64_t next_looked_at_ = 0;                // sequence from which the next send_waiting() looks
  std::deque<MovedStorage*> leaving_;
  std::vector<MovedStorage*> coming_;
  std::vector<Retired> retired_;  // no longer needed, but still in use by copies
  StepOrder order_;
  std::optional<std::string> full_;  // message for the next put(); "": put() has reported it
  OffloadStats stats_;
};

}  // namespace remat::detail
