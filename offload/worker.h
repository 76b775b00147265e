// SPDX-License-Identifier: BSD-3-Clause

// A thread that runs jobs one after the other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "made_in_process.h"

#include <remat/offload/copy_event.h>

namespace remat::detail {

/// Done when the worker finishes it. In a forked process, where the worker's thread does not exist,
/// an unfinished event counts as failed.
class WorkerEvent final : public CopyEvent {
 public:
  bool is_done() override;
  void wait() override;
  void finish(std::exception_ptr error);

 private:
  MadeInProcess process_;
  std::atomic<bool> is_done_ = false;
  std::exception_ptr error_;  // written before is_done_
  std::mutex mutex_;
  std::condition_variable finished_;
};

/// A first-in, first-out queue of jobs. The destructor runs the remaining jobs. In a forked
/// process, which has no such thread, jobs run at once.
class Worker {
 public:
  Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();

  /// Runs `work` once `after` is done. The event fails with the exception of either.
  CopyEventPtr run(std::function<void()> work, CopyEventPtr after);

 private:
  struct Job {
    std::function<void()> work;
    CopyEventPtr after;
    std::shared_ptr<WorkerEvent> event;
  };

  static void run(const Job& job);
  void loop();

  std::mutex mutex_;
  std::condition_variable given_;
  std::deque<Job> jobs_;
  bool ends_ = false;
  MadeInProcess process_;
  std::thread thread_;
};

}  // namespace remat::detail
