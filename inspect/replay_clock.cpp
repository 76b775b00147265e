// SPDX-License-Identifier: BSD-3-Clause

#include <remat/inspect/replay_clock.h>

#include <cstdint>
#include <mutex>
#include <string_view>
#include <thread>
#include <unordered_map>

#include <remat/inspect/thread_clock.h>
#include <remat/inspect/trace_sinks.h>
#include <remat/tape/trace_sink.h>

namespace remat {

class ReplayClock::Sink final : public TraceSink {
 public:
  void tape_replay(const Region& /*region*/, const Region& /*whole*/, bool begins) override {
    const int64_t now = thread_ns();
    const std::lock_guard<std::mutex> lock(mutex_);
    RunningReplays& running = by_thread_[std::this_thread::get_id()];
    if (begins && running.count++ == 0) running.begin_ns = now;
    // A replay that began before the clock did is not counted.
    if (!begins && running.count > 0 && --running.count == 0) ns_ += now - running.begin_ns;
  }

  void before_op(const TraceScope& /*scope*/, const OpCall& /*call*/) override {}
  void after_op(const TraceScope& /*scope*/, const OpCall& /*call*/) override {}
  void named_call(const TraceScope& /*before*/, const TraceScope& /*after*/,
                  const NamedCall& /*call*/, std::string_view /*what*/) override {}
  void call_ended(const TraceScope& /*scope*/, bool /*threw*/) override {}
  void before_save(const TraceScope& /*scope*/, const at::Tensor& /*tensor*/) override {}
  void after_save(const TraceScope& /*scope*/, bool /*threw*/) override {}
  void replay_stops(const TraceScope& /*scope*/) override {}

  double cpu_seconds() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return static_cast<double>(ns_) / 1e9;
  }

 private:
  /// Number of replays running on a thread, and when the outermost one began.
  struct RunningReplays {
    int count = 0;
    int64_t begin_ns = 0;
  };

  mutable std::mutex mutex_;
  std::unordered_map<std::thread::id, RunningReplays> by_thread_;
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
