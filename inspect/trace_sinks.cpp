// SPDX-License-Identifier: BSD-3-Clause

// Adding, removing and telling listeners.
#include "trace_sinks.h"

#include <algorithm>
#include <utility>

namespace remat {

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
  }
  trace_sink = any ? this : nullptr;
}

void TraceSinks::before_op(const TraceScope& scope, const OpCall& call) {
  for (const auto& sink : *now()) sink->before_op(scope, call);
}

void TraceSinks::after_op(const TraceScope& scope, const OpCall& call) {
  for (const auto& sink : *now()) sink->after_op(scope, call);
}

void TraceSinks::named_call(const TraceScope& before, const TraceScope& after,
                            const NamedCall& call, std::string_view what) {
  for (const auto& sink : *now()) sink->named_call(before, after, call, what);
}

void TraceSinks::call_ended(const TraceScope& scope, bool threw) {
  for (const auto& sink : *now()) sink->call_ended(scope, threw);
}

void TraceSinks::before_save(const TraceScope& scope, const at::Tensor& tensor) {
  for (const auto& sink : *now()) sink->before_save(scope, tensor);
}

void TraceSinks::after_save(const TraceScope& scope, bool threw) {
  for (const auto& sink : *now()) sink->after_save(scope, threw);
}

void TraceSinks::replay_stops(const TraceScope& scope) {
  for (const auto& sink : *now()) sink->replay_stops(scope);
}

}  // namespace remat
