// SPDX-License-Identifier: BSD-3-Clause

// A thread that runs jobs one after the other.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include <remat/offload/copy_event.h>

namespace remat::detail {

/// Detects use after a fork, because a forked process does not have the threads of its parent, and
/// shares the parent's open files.
class MadeInProcess {
 public:
  /// True in a process that was forked after construction.
  bool is_forked() const { return process_ != getpid(); }

 private:
  pid_t process_ = getpid();
};

/// A first-in, first-out queue of jobs, with a thread that runs them. The destructor runs the
/// remaining jobs. A forked process does not have the thread, so jobs run at once there. It never
/// destroys the queue, because a condition variable on which a thread of the parent waits cannot be
/// destroyed.
class Worker {
 public:
  Worker();
  ~Worker();

  /// Runs `work` once `after` is done. The event fails with the exception of `after` or `work`.
  CopyEventPtr run(std::function<void()> work, CopyEventPtr after);

 private:
  struct Queue {
    std::mutex mutex;
    std::condition_variable given;
    std::deque<std::function<void()>> jobs;
    bool ends = false;
  };

  static void loop(Queue& queue);

  std::unique_ptr<Queue> queue_;
  MadeInProcess process_;
  std::thread thread_;
};

}  // namespace remat::detail
