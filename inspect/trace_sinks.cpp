// SPDX-License-Identifier: BSD-3-Clause

// Adding, removing and telling listeners.
#include <remat/inspect/trace_sinks.h>

#include <algorithm>
#include <utility>

namespace remat {
namespace {

thread_local bool is_gone = false;  // what the thread remembers of the list

}  // namespace

TraceSinks& TraceSinks::get() {
  static auto& sinks = *new TraceSinks;
  return sinks;
}

void TraceSinks::add(std::shared_ptr<TraceSink> sink) {
  const std::lock_guard<std::mutex> changing(changing_);
  Sinks sinks = *now();
  sinks.push_back(std::move(sink));
  set(std::move(sinks));
}

void TraceSinks::remove(const TraceSink& sink) {
  const std::lock_guard<std::mutex> changing(changing_);
  Sinks sinks = *now();
  sinks.erase(std::remove_if(sinks.begin(), sinks.end(),
                             [&](const auto& other) { return other.get() == &sink; }),
              sinks.end());
  set(std::move(sinks));
}

std::shared_ptr<const TraceSinks::Sinks> TraceSinks::now() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return sinks_;
}

void TraceSinks::set(Sinks sinks) {
  const bool any = !sinks.empty();
  auto shared = std::make_shared<const Sinks>(std::move(sinks));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    sinks_.swap(shared);
    ++changes_;
  }
  trace_sink = any ? this : nullptr;
}

// Each thread remembers the last list that it has seen, so that no lock is shared by what many
// threads do all the time. One that ends may still tell: then by the lock.
std::shared_ptr<const TraceSinks::Sinks> TraceSinks::seen() const {
  struct Seen {
    uint64_t changes = 0;
    std::shared_ptr<const Sinks> sinks;
    ~Seen() { is_gone = true; }
  };
  thread_local Seen seen;
  if (is_gone) return now();
  const uint64_t changes = changes_.load(std::memory_order_acquire);
  if (seen.changes != changes) {
    seen.sinks = now();
    seen.changes = changes;
  }
  return seen.sinks ? seen.sinks : now();
}

// The list that is told lives on, also if another thread changes it.
template <class Tell>
void TraceSinks::for_each(Tell&& tell) const {
  const std::shared_ptr<const Sinks> sinks = seen();
  for (const auto& sink : *sinks) tell(*sink);
}

void TraceSinks::before_op(const TraceScope& scope, const OpCall& call) {
  for_each([&](TraceSink& sink) { sink.before_op(scope, call); });
}

void TraceSinks::after_op(const TraceScope& scope, const OpCall& call) {
  for_each([&](TraceSink& sink) { sink.after_op(scope, call); });
}

void TraceSinks::named_call(const TraceScope& before, const TraceScope& after,
                            const NamedCall& call, std::string_view what) {
  for_each([&](TraceSink& sink) { sink.named_call(before, after, call, what); });
}

void TraceSinks::call_ended(const TraceScope& scope, bool threw) {
  for_each([&](TraceSink& sink) { sink.call_ended(scope, threw); });
}

void TraceSinks::before_save(const TraceScope& scope, const at::Tensor& tensor) {
  for_each([&](TraceSink& sink) { sink.before_save(scope, tensor); });
}

void TraceSinks::after_save(const TraceScope& scope, bool threw) {
  for_each([&](TraceSink& sink) { sink.after_save(scope, threw); });
}

void TraceSinks::before_load(const Region& region, size_t slot) {
  for_each([&](TraceSink& sink) { sink.before_load(region, slot); });
}

void TraceSinks::tape_replay(const Region& region, const Region& whole, bool begins) {
  for_each([&](TraceSink& sink) { sink.tape_replay(region, whole, begins); });
}

void TraceSinks::function_replay(const Region& region, bool begins) {
  for_each([&](TraceSink& sink) { sink.function_replay(region, begins); });
}

void TraceSinks::tape_record(const Tape& tape, size_t record, bool begins) {
  for_each([&](TraceSink& sink) { sink.tape_record(tape, record, begins); });
}

void TraceSinks::replay_stops(const TraceScope& scope) {
  for_each([&](TraceSink& sink) { sink.replay_stops(scope); });
}

}  // namespace remat
