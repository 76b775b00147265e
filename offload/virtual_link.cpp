// SPDX-License-Identifier: BSD-3-Clause

// Copies in virtual time: a queue for each direction, and a clock that moves the bytes when it
// passes the end of a copy.
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

#include "cpu_link.h"
#include "link_speed.h"

#include <remat/offload/sim_link.h>

namespace remat {
namespace {

struct Copy {
  double end_us = 0;
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
  bool is_done = false;
};

class Timeline final : public VirtualClock {
 public:
  double now_us() const override {
    const std::lock_guard lock(mutex_);
    return now_us_;
  }

  void pass_us(double time) override {
    TORCH_CHECK_VALUE(time >= 0, "[VirtualClock] pass_us: expected 0 or more, got ", time, ".");
    const std::lock_guard lock(mutex_);
    go_to(now_us_ + time);
  }

  void pass_until(double time) {
    const std::lock_guard lock(mutex_);
    go_to(std::max(now_us_, time));
  }

  bool is_done(const Copy& copy) const {
    const std::lock_guard lock(mutex_);
    return copy.is_done;
  }

  /// Queues a copy that begins when the stream is free and `after_us` has passed.
  std::shared_ptr<const Copy> queue(int stream, Copy copy, double after_us, double time_us) {
    const std::lock_guard lock(mutex_);
    double& free_us = free_us_[stream];
    free_us = std::max({free_us, after_us, now_us_}) + time_us;
    copy.end_us = free_us;
    const auto queued = std::make_shared<Copy>(copy);
    const auto later = std::find_if(queue_.begin(), queue_.end(),
                                    [&](const auto& other) { return other->end_us > free_us; });
    queue_.insert(later, queued);
    if (copy.end_us <= now_us_) go_to(now_us_);
    return queued;
  }

 private:
  void go_to(double time) {
    while (!queue_.empty() && queue_.front()->end_us <= time) {
      Copy& copy = *queue_.front();
      std::memcpy(copy.to, copy.from, copy.bytes);
      copy.is_done = true;
      queue_.pop_front();
    }
    now_us_ = time;
  }

  mutable std::mutex mutex_;
  double now_us_ = 0;
  double free_us_[2] = {0, 0};
  std::deque<std::shared_ptr<Copy>> queue_;  // the next to end first
};

class VirtualEvent final : public CopyEvent {
 public:
  VirtualEvent(std::shared_ptr<Timeline> timeline, std::shared_ptr<const Copy> copy)
      : timeline_(std::move(timeline)), copy_(std::move(copy)) {}

  bool is_done() override { return timeline_->is_done(*copy_); }
  void wait() override { timeline_->pass_until(copy_->end_us); }
  double end_us() const { return copy_->end_us; }

 private:
  std::shared_ptr<Timeline> timeline_;
  std::shared_ptr<const Copy> copy_;
};

class TimedLink final : public detail::CpuLink {
 public:
  TimedLink(std::shared_ptr<Timeline> timeline, const SimLinkOptions& options)
      : timeline_(std::move(timeline)), options_(options) {}

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
    const size_t bytes = detail::copied_bytes(to, from);
    const Copy copy{.to = to.mutable_data(), .from = from.data(), .bytes = bytes};
    return std::make_shared<VirtualEvent>(
        timeline_, timeline_->queue(stream, copy, event ? event->end_us() : 0,
                                    detail::copy_us(options_, bytes)));
  }

  std::shared_ptr<Timeline> timeline_;
  SimLinkOptions options_;
};

}  // namespace

VirtualLink virtual_link(const SimLinkOptions& options) {
  detail::check_link_speed(options, "[virtual_link]");
  const auto timeline = std::make_shared<Timeline>();
  return {.clock = timeline, .link = std::make_shared<TimedLink>(timeline, options)};
}

}  // namespace remat
