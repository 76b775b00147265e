// SPDX-License-Identifier: BSD-3-Clause

// Turns of threads, and the only place where remat's threads block.
#include <remat/engine/turn.h>

#include <atomic>
#include <mutex>

#include <remat/engine/blocking_wait.h>

namespace remat {
namespace {

void just_wait(c10::function_ref<void()> wait) {
  wait();
}

std::atomic<BlockingWait> wait_runner{&just_wait};

// Leaked: replays may run in threads that outlive static destruction.
std::recursive_mutex& turn_mutex() {
  static std::recursive_mutex& instance = *new std::recursive_mutex;
  return instance;
}

}  // namespace

void set_blocking_wait(BlockingWait runner) {
  wait_runner = runner ? runner : &just_wait;
}

void blocking_wait(c10::function_ref<void()> wait) {
  wait_runner.load()(wait);
}

Turn::Turn() : lock_(turn_mutex(), std::try_to_lock) {
  if (!lock_) blocking_wait([&] { lock_.lock(); });
}

}  // namespace remat
