// SPDX-License-Identifier: BSD-3-Clause

// The process-wide holder of the turn.
#include "turn.h"

#include <condition_variable>
#include <mutex>
#include <thread>

#include <remat/tape/blocking_wait.h>

namespace remat {
namespace {

class Holder {
 public:
  void take() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (try_take()) return;
    }
    blocking_wait([&] {
      std::unique_lock<std::mutex> lock(mutex_);
      freed_.wait(lock, [&] { return try_take(); });
    });
  }

  void give_back() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (--turns_ > 0) return;
    }
    freed_.notify_one();
  }

 private:
  bool try_take() {
    if (turns_ > 0 && thread_ != std::this_thread::get_id()) return false;
    thread_ = std::this_thread::get_id();
    ++turns_;
    return true;
  }

  std::mutex mutex_;
  std::condition_variable freed_;
  std::thread::id thread_;
  int turns_ = 0;
};

// Leaked: replays may run in threads that outlive static destruction.
Holder& holder() {
  static Holder& instance = *new Holder;
  return instance;
}

}  // namespace

Turn::Turn() {
  holder().take();
}

Turn::~Turn() {
  holder().give_back();
}

}  // namespace remat
