// SPDX-License-Identifier: BSD-3-Clause

// Adds and removes trace listeners, and passes events on to them.
#include <remat/inspect/trace_sinks.h>

#include <c10/macros/Macros.h>
#include <c10/util/ScopeExit.h>

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include <remat/engine/named_call.h>
#include <remat/engine/op_call.h>

namespace remat {
namespace {

using Sinks = std::vector<std::shared_ptr<TraceSink>>;

/// The list of sinks that a thread last saw. Trivially constructed and destroyed, so that access
/// needs no initialization check and stays valid until the thread is gone.
struct Seen {
  uint64_t changes = 0;
  const Sinks* sinks = nullptr;
  uint32_t iterating = 0;  ///< Number of nested for_each() calls that iterate over `sinks` now.
  bool is_gone = false;    ///< True once the thread is ending and keeps no list.
};

constinit thread_local Seen seen;

/// Keeps the list that the thread last saw alive.
struct SeenOwner {
  ~SeenOwner() { seen = {.is_gone = true}; }
  std::shared_ptr<const Sinks> sinks;
};

thread_local SeenOwner seen_owner;

/// Passes each event on to all added sinks. While there is a sink, this object is the process's
/// trace_sink; it is never freed, so sinks may come and go while regions run.
class TraceSinks final : public TraceSink {
 public:
  static TraceSinks& get() {
    static auto& sinks = *new TraceSinks;
    // A forked child must not find the list locked by a thread that exists only in the parent.
    static const int at_fork = pthread_atfork(
        [] {
          sinks.changing_.lock();
          sinks.mutex_.lock();
        },
        [] { sinks.unlock_after_fork(); }, [] { sinks.unlock_after_fork(); });
    static_cast<void>(at_fork);
    return sinks;
  }

  void add(std::shared_ptr<TraceSink> sink) {
    const std::lock_guard<std::mutex> changing(changing_);
    Sinks sinks = *now();
    sinks.push_back(std::move(sink));
    set(std::move(sinks));
  }

  void remove(const TraceSink& sink) {
    const std::lock_guard<std::mutex> changing(changing_);
    Sinks sinks = *now();
    sinks.erase(std::remove_if(sinks.begin(), sinks.end(),
                               [&](const auto& other) { return other.get() == &sink; }),
                sinks.end());
    set(std::move(sinks));
  }

  void before_op(const TraceScope& scope, const OpCall& call) override {
    for_each([&](TraceSink& sink) { sink.before_op(scope, call); });
  }
  void after_op(const TraceScope& scope, const OpCall& call) override {
    for_each([&](TraceSink& sink) { sink.after_op(scope, call); });
  }
  void before_part(const TraceScope& scope, const OpCall& call) override {
    for_each([&](TraceSink& sink) { sink.before_part(scope, call); });
  }
  void after_part(const TraceScope& scope, const OpCall& call) override {
    for_each([&](TraceSink& sink) { sink.after_part(scope, call); });
  }
  void op_threw(const TraceScope& scope, const OpCall& call) override {
    for_each([&](TraceSink& sink) { sink.op_threw(scope, call); });
  }
  void named_call(const TraceScope& before, const TraceScope& after, const NamedCall& call,
                  std::string_view what) override {
    for_each([&](TraceSink& sink) { sink.named_call(before, after, call, what); });
  }
  void call_ended(const TraceScope& scope, bool threw) override {
    for_each([&](TraceSink& sink) { sink.call_ended(scope, threw); });
  }
  void before_save(const TraceScope& scope, const at::Tensor& tensor) override {
    for_each([&](TraceSink& sink) { sink.before_save(scope, tensor); });
  }
  void after_save(const TraceScope& scope, bool threw) override {
    for_each([&](TraceSink& sink) { sink.after_save(scope, threw); });
  }
  void before_load(const Region& region, size_t slot) override {
    for_each([&](TraceSink& sink) { sink.before_load(region, slot); });
  }
  void tape_replay(const Region& region, const Region& whole, bool begins) override {
    for_each([&](TraceSink& sink) { sink.tape_replay(region, whole, begins); });
  }
  void function_replay(const Region& region, bool begins) override {
    for_each([&](TraceSink& sink) { sink.function_replay(region, begins); });
  }
  void tape_record(const Tape& tape, size_t record, bool begins) override {
    for_each([&](TraceSink& sink) { sink.tape_record(tape, record, begins); });
  }
  void replay_stops(const TraceScope& scope) override {
    for_each([&](TraceSink& sink) { sink.replay_stops(scope); });
  }

 private:
  void unlock_after_fork() {
    mutex_.unlock();
    changing_.unlock();
  }

  std::shared_ptr<const Sinks> now() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return sinks_;
  }

  void set(Sinks sinks) {
    const bool any = !sinks.empty();
    auto shared = std::make_shared<const Sinks>(std::move(sinks));
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      sinks_.swap(shared);
      ++changes_;
    }
    trace_sink = any ? this : nullptr;
  }

  void refresh() const {
    seen.changes = changes_.load(std::memory_order_acquire);
    seen_owner.sinks = now();
    seen.sinks = seen_owner.sinks.get();
  }

  // Each thread remembers the last list that it saw, so that threads share neither a lock nor a
  // reference count on this frequent path. A thread keeps its list while it iterates, and takes a
  // new one only when no iteration is left. An ending thread has no list, and takes the lock for
  // each event.
  template <class Fn>
  void for_each(Fn&& fn) const {
    if (C10_UNLIKELY(seen.is_gone)) {
      const std::shared_ptr<const Sinks> sinks = now();
      for (const auto& sink : *sinks) fn(*sink);
      return;
    }
    const bool is_new = seen.changes != changes_.load(std::memory_order_acquire);
    if (C10_UNLIKELY(is_new && seen.iterating == 0)) refresh();
    if (!seen.sinks) return;
    ++seen.iterating;
    const auto end = c10::make_scope_exit([] { --seen.iterating; });
    for (const auto& sink : *seen.sinks) fn(*sink);
  }

  mutable std::mutex mutex_;
  std::mutex changing_;
  std::atomic<uint64_t> changes_{0};
  std::shared_ptr<const Sinks> sinks_ = std::make_shared<const Sinks>();  // guarded by mutex_
};

}  // namespace

void add_trace_sink(std::shared_ptr<TraceSink> sink) {
  TraceSinks::get().add(std::move(sink));
}

void remove_trace_sink(const TraceSink& sink) {
  TraceSinks::get().remove(sink);
}

}  // namespace remat
