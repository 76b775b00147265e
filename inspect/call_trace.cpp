// SPDX-License-Identifier: BSD-3-Clause

// Collects the named calls of regions, nested in the scopes that the user opened.
#include <remat/inspect/call_trace.h>

#include <c10/util/Exception.h>

#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include <remat/engine/named_call.h>
#include <remat/engine/scope.h>
#include <remat/inspect/trace_sinks.h>

namespace remat {
namespace {

const char* word_for(Policy policy) {
  switch (policy) {
    case Policy::kSave:
      return "save";
    case Policy::kOffload:
      return "offload";
    default:
      return "recompute";
  }
}

void append(std::string& text, const std::vector<CallTraceEntry>& entries, size_t depth) {
  for (const CallTraceEntry& entry : entries) {
    text.append("\n").append(2 * depth, ' ').append(entry.name);
    if (!entry.is_scope) {
      text.append(": ").append(word_for(entry.policy));
    } else if (!entry.metadata.empty()) {
      text.append(" [").append(entry.metadata).append("]");
    }
    append(text, entry.entries, depth + 1);
  }
}

}  // namespace

class CallTrace::Collector final : public TraceSink {
 public:
  explicit Collector(Applies applies) : applies_(std::move(applies)) {
    if (applies_) return;
    applies_ = [thread = std::this_thread::get_id()] {
      return std::this_thread::get_id() == thread;
    };
  }

  void named_call(const TraceScope& before, const TraceScope& /*after*/, const NamedCall& call,
                  std::string_view what) override {
    if (what != "begins" || before.is_replay || before.saved_call) return;
    if (Scope::is_in_replay() || !applies_()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    innermost().push_back(
        {.name = call.name, .policy = call.policy, .metadata = {}, .entries = {}});
  }

  void begin_scope(std::string name, std::string metadata) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<CallTraceEntry>& entries = innermost();
    entries.push_back({.name = std::move(name),
                       .is_scope = true,
                       .metadata = std::move(metadata),
                       .entries = {}});
    open_.push_back(entries.size() - 1);
  }

  void end_scope() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!open_.empty()) open_.pop_back();
  }

  std::vector<CallTraceEntry> entries() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return entries_;
  }

 private:
  std::vector<CallTraceEntry>& innermost() {
    std::vector<CallTraceEntry>* entries = &entries_;
    for (const size_t index : open_) entries = &(*entries)[index].entries;
    return *entries;
  }

  Applies applies_;
  mutable std::mutex mutex_;
  std::vector<CallTraceEntry> entries_;
  // For each open scope, outermost first, its index in the scope around it.
  std::vector<size_t> open_;
};

CallTrace::CallTrace(Applies applies)
    : collector_(std::make_shared<Collector>(std::move(applies))) {
  add_trace_sink(collector_);
}

CallTrace::~CallTrace() {
  stop();
}

void CallTrace::stop() {
  remove_trace_sink(*collector_);
}

bool CallTrace::begin_scope(std::string name, std::string metadata) {
  TORCH_CHECK_VALUE(!name.empty(),
                    "[CallTrace] scope: expected a name, must be non-empty, got an empty one.");
  if (Scope::is_in_replay()) return false;
  collector_->begin_scope(std::move(name), std::move(metadata));
  return true;
}

void CallTrace::end_scope() {
  collector_->end_scope();
}

std::vector<CallTraceEntry> CallTrace::entries() const {
  return collector_->entries();
}

std::string CallTrace::str() const {
  std::string text = "remat trace";
  append(text, entries(), 0);
  return text;
}

}  // namespace remat
