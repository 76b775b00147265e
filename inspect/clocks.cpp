// SPDX-License-Identifier: BSD-3-Clause

// The clocks of threads and of replays.
#include <remat/inspect/replay_clock.h>

#include <algorithm>
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
namespace {

/// Most wall time added to a reading of thread_ns(), since the thread may be interrupted meanwhile.
constexpr int64_t kMaxWallNs = 15'000;

}  // namespace

int64_t frequent_thread_ns() {
  static thread_local int64_t exact_ns = 0;            // last result of thread_ns()
  static thread_local int64_t exact_at = -kMaxWallNs;  // wall time of that reading
  static thread_local int64_t newest_ns = 0;
  const int64_t now_ns = wall_ns();
  if (now_ns - exact_at >= kMaxWallNs) {
    exact_ns = thread_ns();
    exact_at = now_ns;
  }
  newest_ns = std::max(newest_ns, exact_ns + now_ns - exact_at);
  return newest_ns;
}

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
  add_trace_sink(sink_);
}

ReplayClock::~ReplayClock() {
  remove_trace_sink(*sink_);
}

double ReplayClock::cpu_seconds() const {
  return sink_->cpu_seconds();
}

}  // namespace remat
