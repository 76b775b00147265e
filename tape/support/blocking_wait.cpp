// SPDX-License-Identifier: BSD-3-Clause

// The only place where remat's threads block.
#include <remat/tape/blocking_wait.h>

#include <atomic>

namespace remat {
namespace {

void just_wait(c10::function_ref<void()> wait) {
  wait();
}

std::atomic<BlockingWait> wait_runner{&just_wait};

}  // namespace

void set_blocking_wait(BlockingWait runner) {
  wait_runner = runner ? runner : &just_wait;
}

void blocking_wait(c10::function_ref<void()> wait) {
  wait_runner.load()(wait);
}

}  // namespace remat
