// SPDX-License-Identifier: BSD-3-Clause

#include "worker.h"

#include <c10/util/Exception.h>
#include <sys/prctl.h>

#include <atomic>
#include <exception>
#include <memory>
#include <utility>

#include <remat/engine/blocking_wait.h>

namespace remat::detail {

namespace {

/// Done when the worker has run the job. A forked process does not have the worker's thread, so
/// there the event of an unfinished job counts as failed.
class WorkerEvent final : public CopyEvent {
 public:
  bool is_done() override { return is_done_ || process_.is_forked(); }

  void wait() override {
    // In a forked process the mutex may be locked for ever.
    TORCH_CHECK(is_done_ || !process_.is_forked(),
                "its copy was under way when the process was forked");
    if (!is_done_) {
      blocking_wait([this] {
        std::unique_lock lock(mutex_);
        finished_.wait(lock, [this] { return is_done_.load(); });
      });
    }
    if (error_) std::rethrow_exception(error_);
  }

  void finish(std::exception_ptr error) {
    error_ = std::move(error);
    {
      const std::lock_guard lock(mutex_);
      is_done_ = true;
    }
    finished_.notify_all();
  }

 private:
  MadeInProcess process_;
  std::atomic<bool> is_done_ = false;
  std::exception_ptr error_;  // written before is_done_
  std::mutex mutex_;
  std::condition_variable finished_;
};

}  // namespace

Worker::Worker()
    : queue_(std::make_unique<Queue>()), thread_([&queue = *queue_] { loop(queue); }) {}

Worker::~Worker() {
  if (process_.is_forked()) {
    thread_.detach();
    static_cast<void>(queue_.release());
    return;
  }
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->ends = true;
  }
  queue_->given.notify_one();
  thread_.join();
}

CopyEventPtr Worker::run(std::function<void()> work, CopyEventPtr after) {
  auto event = std::make_shared<WorkerEvent>();
  auto job = [work = std::move(work), after = std::move(after), event] {
    std::exception_ptr error;
    try {
      if (after) after->wait();
      work();
    } catch (...) {
      error = std::current_exception();
    }
    event->finish(std::move(error));
  };
  if (process_.is_forked()) {
    job();
    return event;
  }
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->jobs.push_back(std::move(job));
  }
  queue_->given.notify_one();
  return event;
}

void Worker::loop(Queue& queue) {
  // Not pthread_setname_np(), which needs a newer glibc than wheels are built for.
  ::prctl(PR_SET_NAME, "remat_copy");
  std::unique_lock lock(queue.mutex);
  while (true) {
    queue.given.wait(lock, [&] { return queue.ends || !queue.jobs.empty(); });
    if (queue.jobs.empty()) return;
    {
      const std::function<void()> job = std::move(queue.jobs.front());
      queue.jobs.pop_front();
      lock.unlock();
      job();
    }
    lock.lock();
  }
}

}  // namespace remat::detail
