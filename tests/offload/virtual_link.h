// SPDX-License-Identifier: BSD-3-Clause

// A link like sim_link() in virtual time: nothing sleeps, a clock moves the bytes when it passes
// the end of a copy, and every run is the same.
#pragma once

#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

#include <remat/offload/sim_link.h>

namespace remat {

struct VirtualCopy {
  double end_us = 0;
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
  bool is_done = false;
};

/// The clock of a VirtualLink. Time passes only by pass_us() and by waits. Any thread.
class VirtualClock {
 public:
  double now_us() const {
    const std::lock_guard lock(mutex_);
    return now_us_;
  }

  /// Lets this much time pass, as if computing.
  void pass_us(double time) {
    const std::lock_guard lock(mutex_);
    go_to(now_us_ + time);
  }

  void pass_until(double time) {
    const std::lock_guard lock(mutex_);
    go_to(std::max(now_us_, time));
  }

  bool is_done(const VirtualCopy& copy) const {
    const std::lock_guard lock(mutex_);
    return copy.is_done;
  }

  /// Queues a copy that begins when the stream is free and `after_us` has passed.
  std::shared_ptr<const VirtualCopy> queue(int stream, VirtualCopy copy, double after_us,
                                           double time_us) {
    const std::lock_guard lock(mutex_);
    double& free_us = free_us_[stream];
    free_us = std::max({free_us, after_us, now_us_}) + time_us;
    copy.end_us = free_us;
    const auto queued = std::make_shared<VirtualCopy>(copy);
    const auto later = std::find_if(queue_.begin(), queue_.end(),
                                    [&](const auto& other) { return other->end_us > free_us; });
    queue_.insert(later, queued);
    if (copy.end_us <= now_us_) go_to(now_us_);
    return queued;
  }

 private:
  void go_to(double time) {
    while (!queue_.empty() && queue_.front()->end_us <= time) {
      VirtualCopy& copy = *queue_.front();
      std::memcpy(copy.to, copy.from, copy.bytes);
      copy.is_done = true;
      queue_.pop_front();
    }
    now_us_ = time;
  }

  mutable std::mutex mutex_;
  double now_us_ = 0;
  double free_us_[2] = {0, 0};
  std::deque<std::shared_ptr<VirtualCopy>> queue_;  // in the order in which the copies end
};

class VirtualEvent final : public CopyEvent {
 public:
  VirtualEvent(std::shared_ptr<VirtualClock> clock, std::shared_ptr<const VirtualCopy> copy)
      : clock_(std::move(clock)), copy_(std::move(copy)) {}

  bool is_done() override { return clock_->is_done(*copy_); }
  void wait() override { clock_->pass_until(copy_->end_us); }
  double end_us() const { return copy_->end_us; }

 private:
  std::shared_ptr<VirtualClock> clock_;
  std::shared_ptr<const VirtualCopy> copy_;
};

class TimedLink final : public CopyLink {
 public:
  TimedLink(std::shared_ptr<VirtualClock> clock, const SimLinkOptions& options)
      : clock_(std::move(clock)), options_(options) {}

  at::Storage allocate_host(int64_t bytes, c10::Device /*device*/) override {
    void* const memory =
        std::aligned_alloc(4096, static_cast<size_t>((bytes + 4095) / 4096 * 4096));
    return {c10::make_intrusive<c10::StorageImpl>(
        c10::StorageImpl::use_byte_size_t(), bytes,
        c10::DataPtr(memory, memory, &std::free, c10::kCPU), nullptr, /*resizable=*/false)};
  }
  int64_t stream(c10::Device /*device*/) override { return 0; }
  void share(const at::Storage& /*storage*/) override {}
  CopyEventPtr computed_so_far(c10::Device /*device*/) override { return nullptr; }
  void hold_compute(const CopyEventPtr& event, c10::Device /*device*/) override {
    if (event) event->wait();
  }
  CopyEventPtr copy_out(const at::Storage& host, const at::Storage& device,
                        const CopyEventPtr& after) override {
    return copy(0, host, device, after);
  }
  CopyEventPtr copy_in(const at::Storage& device, const at::Storage& host,
                       const CopyEventPtr& after) override {
    return copy(1, device, host, after);
  }

 private:
  CopyEventPtr copy(int stream, const at::Storage& to, const at::Storage& from,
                    const CopyEventPtr& after) {
    const auto* const event = dynamic_cast<const VirtualEvent*>(after.get());
    const size_t bytes = std::min(to.nbytes(), from.nbytes());
    const double bytes_per_us = options_.gbps * 1e3;
    const double time_us =
        options_.latency_us + (bytes_per_us > 0 ? static_cast<double>(bytes) / bytes_per_us : 0);
    const VirtualCopy copy{.to = to.mutable_data(), .from = from.data(), .bytes = bytes};
    return std::make_shared<VirtualEvent>(
        clock_, clock_->queue(stream, copy, event ? event->end_us() : 0, time_us));
  }

  std::shared_ptr<VirtualClock> clock_;
  SimLinkOptions options_;
};

struct VirtualLink {
  std::shared_ptr<VirtualClock> clock;
  std::shared_ptr<CopyLink> link;
};

inline VirtualLink virtual_link(const SimLinkOptions& options) {
  const auto clock = std::make_shared<VirtualClock>();
  return {.clock = clock, .link = std::make_shared<TimedLink>(clock, options)};
}

}  // namespace remat
