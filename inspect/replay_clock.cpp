// SPDX-License-Identifier: BSD-3-Clause

#include <remat/inspect/replay_clock.h>

#include <cstdint>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include <remat/engine/trace_sink.h>
#include <remat/inspect/thread_clock.h>
#include <remat/inspect/trace_sinks.h>

namespace remat {

class ReplayClock::Sink final : public TraceSink {
 public:
  void tape_replay(const Region& /*region*/, const Region& /*whole*/, bool begins) override {
    const int64_t now = thread_ns();
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& [count, begin_ns] = by_thread_[std::this_thread::get_id()];
    if (begins && count++ == 0) begin_ns = now;
    // A replay that began before the clock did is not counted.
    if (!begins && count > 0 && --count == 0) ns_ += now - begin_ns;
  }

  double cpu_seconds() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<double>(ns_) / 1e9;
  }

 private:
  mutable std::mutex mutex_;
  // The number of replays running on a thread, and when the outermost one began.
  std::unordered_map<std::thread::id, std::pair<int, int64_t>> by_thread_;
  int64_t ns_ = 0;
};

ReplayClock::ReplayClock() : sink_(std::make_shared<Sink>()) {
  TraceSinks::get().add(sink_);
}

ReplayClock::~ReplayClock() {
  TraceSinks::get().remove(*sink_);
}

double ReplayClock::cpu_seconds() const {
  return sink_->cpu_seconds();
}

}  // namespace remat
