// SPDX-License-Identifier: BSD-3-Clause

#include "worker.h"

#include <c10/util/Exception.h>
#include <sys/prctl.h>

#include <utility>

#include <remat/engine/blocking_wait.h>

namespace remat::detail {

bool WorkerEvent::is_done() {
  return is_done_ || process_.is_forked();
}

void WorkerEvent::wait() {
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

void WorkerEvent::finish(std::exception_ptr error) {
  error_ = std::move(error);
  {
    const std::lock_guard lock(mutex_);
    is_done_ = true;
  }
  finished_.notify_all();
}

Worker::Worker() : thread_([this] { loop(); }) {}

Worker::~Worker() {
  if (process_.is_forked()) {
    thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  given_.notify_one();
  thread_.join();
}

CopyEventPtr Worker::run(std::function<void()> work, CopyEventPtr after) {
  auto event = std::make_shared<WorkerEvent>();
  if (process_.is_forked()) {
    run({std::move(work), std::move(after), event});
    return event;
  }
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back({std::move(work), std::move(after), event});
  }
  given_.notify_one();
  return event;
}

void Worker::run(const Job& job) {
  std::exception_ptr error;
  try {
    if (job.after) job.after->wait();
    job.work();
  } catch (...) {
    error = std::current_exception();
  }
  job.event->finish(std::move(error));
}

void Worker::loop() {
  // Not pthread_setname_np(), which needs a newer glibc than wheels are built for.
  ::prctl(PR_SET_NAME, "remat_copy");
  std::unique_lock lock(mutex_);
  while (true) {
    given_.wait(lock, [this] { return ends_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    run(job);
    lock.lock();
  }
}

}  // namespace remat::detail
