// SPDX-License-Identifier: BSD-3-Clause

// Turns of threads, and the only place where remat's threads block.
#include <remat/engine/turn.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <remat/engine/blocking_wait.h>

namespace remat {
namespace {

void just_wait(c10::function_ref<void()> wait) {
  wait();
}

std::atomic<BlockingWait> wait_runner{&just_wait};

/// A recursive mutex. A std::recursive_mutex would not do, because its owner is a kernel thread: a
/// forked child runs on another kernel thread, and must keep the turn that the forking thread had.
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

void set_blocking_wait(BlockingWait runner) {
  wait_runner = runner ? runner : &just_wait;
}

void blocking_wait(c10::function_ref<void()> wait) {
  wait_runner.load()(wait);
}

Turn::Turn() {
  holder().take();
}

Turn::~Turn() {
  holder().give_back();
}

}  // namespace remat
