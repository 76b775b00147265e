// SPDX-License-Identifier: BSD-3-Clause

// A mutex whose holder may wait for the lock that the host has round calls into remat (Python's
// GIL).
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include <remat/tape/blocking_wait.h>

namespace remat::detail {

/// Who finds it taken lets go of the host's lock until it has it; who finds it free pays one
/// exchange. Not std::mutex with try_lock(), which asks for a newer glibc than wheels are for.
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
    // Whoever counts itself after this finds it free.
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

}  // namespace remat::detail
