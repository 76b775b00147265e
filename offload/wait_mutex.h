// SPDX-License-Identifier: BSD-3-Clause

// A mutex whose holder may wait for the host's lock around calls into remat (Python's GIL).
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>

#include <remat/engine/blocking_wait.h>

namespace remat::detail {

/// A thread that finds the mutex taken releases the host's lock while it waits; taking a free mutex
/// costs one exchange. Not std::mutex with try_lock(), which needs a newer glibc than wheels are
/// built for.
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
    // A thread that counts itself after this finds the mutex free.
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
