// SPDX-License-Identifier: BSD-3-Clause

// Sources of events (ops, nodes, memory, replays), and the log that they write to.
#include <remat/budget/step_recording.h>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include <remat/engine/op_call.h>
#include <remat/engine/region.h>
#include <remat/engine/trace_sink.h>
#include <remat/inspect/thread_clock.h>
#include <remat/inspect/trace_sinks.h>
#include <remat/tape/tape.h>

#include "step_listener.h"
#include "step_nodes.h"

namespace remat {
namespace {

/// Bit i is set if the i-th tensor argument requires grad.
uint64_t gradients_of(const OpCall& call) {
  uint64_t bits = 0;
  unsigned next = 0;
  for (const OpTensor& given : call.tensors()) {
    if (next < 64 && given.tensor->requires_grad()) bits |= uint64_t{1} << next;
    ++next;
  }
  return bits;
}

thread_local std::optional<at::CallbackHandle> node_callback;
thread_local std::optional<at::CallbackHandle> result_callback;

/// Callback for the results of all ops; see Note [Memory of libraries].
void add_results(const at::RecordFunction& op, at::ObserverContext* /*context*/) {
  StepListener* const listener = StepListener::current.load();
  if (!listener) return;
  for (const c10::IValue& result : op.outputs()) listener->add_results(result);
}

/// Installs add_results() as a callback once accelerator memory has been allocated.
void hear_of_results(const StepListener& listener) {
  if (result_callback || !listener.sees_accelerator() || !listener.is_of_this_thread()) return;
  const auto nothing = [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> {
    return nullptr;
  };
  result_callback = at::addThreadLocalCallback(at::RecordFunctionCallback(nothing, &add_results)
                                                   .needsOutputs(true)
                                                   .scopes({at::RecordScope::FUNCTION}));
}

}  // namespace

std::atomic<StepListener*> StepListener::current{nullptr};

/// Logs ops, saved tensors and replays.
class StepRecording::Ops final : public TraceSink {
 public:
  explicit Ops(std::shared_ptr<StepListener> listener) : listener_(std::move(listener)) {}

  void before_op(const TraceScope& scope, const OpCall& call) override { begin(scope, call); }
  // Skips views, since some handlers make views only in their first call, to learn shapes.
  void before_part(const TraceScope& scope, const OpCall& call) override {
    if (!call.info().is_plain_view()) begin(scope, call);
  }
  void after_op(const TraceScope& scope, const OpCall& call) override { end(scope, call); }
  void after_part(const TraceScope& scope, const OpCall& call) override {
    if (!call.info().is_plain_view()) end(scope, call);
  }

  void op_threw(const TraceScope& scope, const OpCall& call) override {
    if (!is_of_step(scope) || open_.empty()) return;
    const int64_t now = frequent_thread_ns();
    listener_->write([&](StepLog& log, StepLog::Moment& next) {
      StepLog::Op& op = log.ops[open_.back()];
      if (op.op != &call.info()) return;  // a view made by a handler, not logged
      open_.pop_back();
      op.end_ns = now;
      op.end_node = op.first_node;
      op.end = next++;
    });
  }

  void before_save(const TraceScope& scope, const at::Tensor& /*tensor*/) override {
    if (!is_of_step(scope) || scope.depth > 0) return;
    listener_->write([&](StepLog& log, StepLog::Moment& /*next*/) {
      const uint64_t newest = at::sequence_number::peek() - 1;
      log.saves.push_back({.op = static_cast<uint32_t>(log.ops.empty() ? 0 : log.ops.size() - 1),
                           .first_node = open_.empty()
                                             ? newest
                                             : std::min(log.ops[open_.front()].first_node, newest),
                           .newest_node = newest,
                           .slot = {scope.region->id(), scope.slot}});
    });
  }

  void before_load(const Region& region, size_t slot) override {
    const uint32_t node = listener_->here().node;
    if (node == StepLog::kNone) return;
    listener_->write([&](StepLog& log, StepLog::Moment& next) {
      log.backward.loads.push_back({node, next++, {region.id(), slot}});
    });
  }

  void tape_replay(const Region& /*region*/, const Region& /*whole*/, bool begins) override {
    if (!listener_->works_here()) return;
    StepThread& here = listener_->here();
    const bool is_outermost = begins ? here.replays++ == 0 : here.replays == 1;
    if (!begins && here.replays > 0) --here.replays;
    if (!is_outermost) return;
    const int64_t now = frequent_thread_ns();
    listener_->write([&](StepLog& log, StepLog::Moment& next) {
      if (begins) {
        here.replay = log.replays.size();
        log.replays.push_back(
            {.thread = at::RecordFunction::currentThreadId(), .begin = next++, .begin_ns = now});
      } else {
        log.replays[here.replay].end = next++;
        log.replays[here.replay].end_ns = now;
      }
    });
  }

  void tape_record(const Tape& tape, size_t record, bool begins) override {
    if (&tape != tape_) return;
    const int64_t now = frequent_thread_ns();
    if (begins) {
      rerun_begin_ns = now;
      return;
    }
    listener_->write([&](StepLog& log, StepLog::Moment& /*next*/) {
      log.reruns.push_back({static_cast<uint32_t>(record), now - rerun_begin_ns});
    });
  }

  void enter(uint32_t place) { place_ = place; }

  /// From now on regions belong to other steps.
  void end_forward() { is_over_ = true; }

 private:
  /// True for events in the forward of the first outermost region that this thread has begun,
  /// including those of regions inside that region.
  bool is_of_step(const TraceScope& scope) {
    if (is_over_ || std::this_thread::get_id() != thread_ || scope.is_replay || !scope.whole)
      return false;
    if (scope.depth > 0) return region_ != 0;
    if (region_ == 0) {
      region_ = scope.whole->id();
      const auto replayer = scope.whole->replayer();
      tape_ = replayer ? replayer->tape() : nullptr;
      listener_->write([&](StepLog& log, StepLog::Moment&) { log.region = region_; });
    }
    return scope.whole->id() == region_;
  }

  void begin(const TraceScope& scope, const OpCall& call) {
    if (!is_of_step(scope)) return;
    hear_of_results(*listener_);
    listener_->write([&](StepLog& log, StepLog::Moment& next) {
      const uint32_t outer = open_.empty() ? StepLog::kNone : open_.back();
      open_.push_back(static_cast<uint32_t>(log.ops.size()));
      log.ops.push_back({.op = &call.info(),
                         .place = place_,
                         .record = records(),
                         .begin = next++,
                         .gradients = gradients_of(call),
                         .first_node = at::sequence_number::peek(),
                         .first_result = static_cast<uint32_t>(log.results.size()),
                         .outer = outer});
      if (scope.depth > 0 && log.inner_region.empty()) log.inner_region = scope.region->label();
      log.ops.back().begin_ns = frequent_thread_ns();
    });
  }

  void end(const TraceScope& scope, const OpCall& call) {
    if (!is_of_step(scope)) return;
    const int64_t now = frequent_thread_ns();
    listener_->write([&](StepLog& log, StepLog::Moment& next) {
      if (open_.empty()) return;
      const uint32_t number = open_.back();
      open_.pop_back();
      StepLog::Op& op = log.ops[number];
      op.end_ns = now;
      op.end_node = at::sequence_number::peek();
      op.end = next++;
      if (number + 1 != log.ops.size()) return;  // ops inside this op have made the results
      for (size_t i = 0; i < call.info().return_count(); ++i) add_results(log, call.result(i), i);
    });
  }

  uint32_t records() const { return tape_ ? static_cast<uint32_t>(tape_->records().size()) : 0; }

  void add_results(StepLog& log, const c10::IValue& value, size_t result) const {
    const auto add = [&](const at::Tensor& tensor, size_t element) {
      log.results.push_back({.result = static_cast<uint16_t>(result),
                             .element = static_cast<uint16_t>(element),
                             .block = listener_->mark_result(tensor)});
    };
    if (value.isTensor()) return add(value.toTensor(), 0);
    if (!value.isTensorList()) return;
    size_t element = 0;
    for (const c10::IValue& item : value.toListRef()) add(item.toTensor(), element++);
  }

  static inline thread_local int64_t rerun_begin_ns = 0;

  const std::shared_ptr<StepListener> listener_;
  const std::thread::id thread_ = std::this_thread::get_id();
  uint64_t region_ = 0;
  const Tape* tape_ = nullptr;  // the region's tape, alive while its forward runs
  uint32_t place_ = 0;
  std::vector<uint32_t> open_;  // running ops, outermost first; guarded by the listener's lock
  bool is_over_ = false;
};

StepRecording::StepRecording() : listener_(std::make_shared<StepListener>()) {
  StepListener* none = nullptr;
  TORCH_CHECK(StepListener::current.compare_exchange_strong(none, listener_.get()),
              "[profile] expected no other measurement in the process, got a second one. Let the "
              "first one end.");
  try {
    AllocationListener::start(listener_, "profile");
  } catch (...) {
    StepListener::current = nullptr;
    throw;
  }
  ops_ = std::make_shared<Ops>(listener_);
  add_trace_sink(ops_);
  node_callback = at::addThreadLocalCallback(node_callbacks());
}

std::unique_ptr<StepRecording> StepRecording::try_make() {
  try {
    return std::make_unique<StepRecording>();
  } catch (const c10::Error&) {
    return nullptr;
  }
}

StepRecording::~StepRecording() {
  if (node_callback) at::removeCallback(*std::exchange(node_callback, std::nullopt));
  if (result_callback) at::removeCallback(*std::exchange(result_callback, std::nullopt));
  remove_trace_sink(*ops_);
  listener_->stop();
  StepListener::current = nullptr;
}

void StepRecording::enter(const std::string& place) {
  listener_->write([&](StepLog& log, StepLog::Moment& /*next*/) {
    const auto known = std::find(log.places.rbegin(), log.places.rend(), place);
    const auto number =
        known == log.places.rend() ? log.places.size() : log.places.rend() - known - 1;
    if (known == log.places.rend()) log.places.push_back(place);
    ops_->enter(static_cast<uint32_t>(number));
  });
}

void StepRecording::end_forward() {
  ops_->end_forward();
  hear_of_results(*listener_);
  listener_->write([&](StepLog& log, StepLog::Moment& next) { log.forward_end = next++; });
}

StepLog StepRecording::log() const {
  return listener_->copy();
}

StepLog StepRecording::finish() {
  return listener_->take();
}

}  // namespace remat
