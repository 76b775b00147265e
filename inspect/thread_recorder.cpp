// SPDX-License-Identifier: BSD-3-Clause

#include "thread_recorder.h"

#include <pthread.h>

#include <exception>
#include <string>
#include <utility>

#include <remat/engine/region.h>
#include <remat/engine/region_run.h>
#include <remat/engine/replayer.h>
#include <remat/engine/scope.h>
#include <remat/policy/policy.h>
#include <remat/tape/tape.h>

namespace remat {
namespace {

std::string thread_name() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

}  // namespace

ThreadRecorder::ThreadRecorder(const std::shared_ptr<RecordingWriter>& writer, uint32_t number,
                               TimeNs begin_ns, bool source_lines)
    : events_(writer, number, begin_ns), ids_(writer, source_lines) {
  events_.add(
      ThreadEvent{events_.now(), at::RecordFunction::currentThreadId(), ids_.text(thread_name())});
}

// Note [Ops inside of what looks at an op]: reading the device of a tensor of a Python class, and
// creating Python frames, may run ops (in finalizers too). So begin_op() adds an op to ops_, in an
// entry that does not move, before reading the arguments, and end_op() removes the op only after
// reading the results.
void ThreadRecorder::begin_op(const at::RecordFunction& function) {
  const RunningOp* const caller = caller_here();
  if (ops_.count == ops_.all.size()) ops_.all.emplace_back();
  RunningOp& running = ops_.all[ops_.count++];
  running.clear();
  OpEvent& op = running.event;
  op.name = ids_.op(function);
  op.sequence = static_cast<uint64_t>(function.seqNr());
  op.depth = ops_.depth;
  running.is_engine_range = op.name == ids_.engine_range();
  running.replays = replays_.size();
  if (running.is_engine_range) {
    if (ops_.engine_ranges++ == 0) ids_.begin_backward();
  } else {
    ++ops_.depth;
    op.number = ++ops_.number;
    begin_in(op, caller);
    for (const c10::IValue& argument : function.inputs()) ids_.add_argument(argument, op);
    op.line = caller ? caller->event.line : ids_.line(is_called_by_engine());
  }
  running.exceptions = std::uncaught_exceptions();
  op.begin_ns = events_.now();
}

void ThreadRecorder::RunningOp::clear() {
  std::vector<RecordedTensor> arguments = std::move(event.arguments);
  std::vector<RecordedValue> values = std::move(event.values);
  std::vector<RecordedTensor> results = std::move(event.results);
  *this = {};
  event.arguments = std::move(arguments);
  event.values = std::move(values);
  event.results = std::move(results);
  event.arguments.clear();
  event.values.clear();
  event.results.clear();
}

/// The op that called what runs now; null if the program, the engine or a replay called it.
ThreadRecorder::RunningOp* ThreadRecorder::caller_here() {
  RunningOp* const innermost = ops_.innermost();
  const bool is_caller =
      innermost && !innermost->is_engine_range && innermost->replays == replays_.size();
  return is_caller ? innermost : nullptr;
}

/// Fills in what is known of the op's region and phase before a region sees the op.
void ThreadRecorder::begin_in(OpEvent& op, const RunningOp* caller) {
  if (caller && caller->event.region != 0) {
    const OpEvent& outer = caller->event;
    op.region = outer.region;
    op.phase = outer.phase;
    op.call = outer.call;
    op.record = outer.record;
    op.first_slot = op.end_slot = outer.first_slot;
  }
  if (!replays_.empty()) {
    const ReplayEvent& replay = replays_.back().first;
    op.phase = OpPhase::kReplay;
    if (op.region == 0) op.region = replay.region;
    if (!replay.from_function) {
      op.region = replay.region;
      op.record = record_;
      op.is_seen = std::exchange(record_is_new_, false);
    }
  } else if (is_called_by_engine()) {
    op.phase = OpPhase::kBackward;
  }
}

/// True if a backward pass or a tape called what runs now.
bool ThreadRecorder::is_called_by_engine() const {
  if (!replays_.empty()) return !replays_.back().first.from_function;
  return ops_.engine_ranges > 0 || !nodes_.empty();
}

void ThreadRecorder::end_op(const at::RecordFunction& function) {
  if (ops_.count == 0) return;  // the op began before the recording
  RunningOp& running = *ops_.innermost();
  if (running.is_engine_range) {
    --ops_.count;
    if (--ops_.engine_ranges == 0) ids_.end_backward();
    return;
  }
  OpEvent& op = running.event;
  op.end_ns = events_.now();
  op.threw = std::uncaught_exceptions() > running.exceptions && !running.is_stopped;
  try {
    for (const c10::IValue& result : function.outputs()) ids_.add_result(result, op);
  } catch (const std::exception&) {
    op.results.clear();  // a result of a class whose device cannot be read: record none
  }
  --ops_.count;
  --ops_.depth;
  // The replay refused this op before before_op(), which would have marked the op as seen.
  if (op.threw && op.phase == OpPhase::kReplay && !running.inner_threw) op.is_seen = true;
  if (op.threw && ops_.count > 0) ops_.innermost()->inner_threw = true;
  // A composite op belongs to the region of the ops that it calls.
  RunningOp* const caller = caller_here();
  if (caller && caller->event.region == 0) {
    OpEvent& outer = caller->event;
    outer.region = op.region;
    outer.phase = op.phase;
    outer.first_slot = outer.end_slot = op.first_slot;
  }
  events_.add(op);
}

void ThreadRecorder::begin_node(const at::RecordFunction& node) {
  nodes_.push_back({events_.now(), 0, ids_.text(node.name()), static_cast<uint64_t>(node.seqNr()),
                    node.forwardThreadId()});
}

void ThreadRecorder::end_node() {
  if (nodes_.empty()) return;
  nodes_.back().end_ns = events_.now();
  events_.add(nodes_.back());
  nodes_.pop_back();
}

void ThreadRecorder::before_op(const TraceScope& scope, const OpCall& call) {
  if (ops_.count == 0 || !scope.region) return;
  write_region(scope);
  OpEvent& op = ops_.innermost()->event;
  op.region = scope.region->id();
  const bool in_replay = scope.is_replay || !replays_.empty();
  op.phase = in_replay ? OpPhase::kReplay : OpPhase::kForward;
  op.is_seen = true;
  op.call = scope.saved_call ? ids_.call(scope.saved_call->name) : 0;
  op.keys = ids_.keys(call);
  op.first_slot = op.end_slot = static_cast<uint32_t>(scope.slot);
  op.kept = static_cast<uint32_t>(scope.kept);
  op.record = tape_ && !scope.is_replay ? static_cast<uint32_t>(tape_->records().size())
                                        : OpEvent::kNoRecord;
  if (scope.parent) note_outer_records(op);
}

void ThreadRecorder::note_outer_records(OpEvent& op) {
  bool is_innermost = true;
  for (const Scope* scope = Scope::current(); scope; scope = scope->previous()) {
    if (!scope->run() || std::exchange(is_innermost, false)) continue;
    const TraceScope place = scope->run()->trace_scope();
    if (place.is_replay) continue;
    const auto replayer = place.whole->replayer();
    const Tape* const tape = replayer ? replayer->tape() : nullptr;
    if (!tape) continue;
    op.outer_records.push_back({place.whole->id(), static_cast<uint32_t>(tape->records().size())});
  }
}

void ThreadRecorder::after_op(const TraceScope& scope) {
  if (ops_.count == 0 || !scope.region) return;
  OpEvent& op = ops_.innermost()->event;
  if (op.region != scope.region->id()) return;  // an outer region's report of the same op
  op.end_slot = static_cast<uint32_t>(scope.slot);
  op.kept = static_cast<uint32_t>(scope.kept) - op.kept;
}

void ThreadRecorder::before_save(const TraceScope& scope, const at::Tensor& tensor) {
  if (scope.region) write_region(scope);
  saves_.emplace_back(scope, ids_.tensor(tensor));
}

void ThreadRecorder::after_save(const TraceScope& scope, bool threw) {
  if (saves_.empty()) return;
  const auto [before, tensor] = saves_.back();
  saves_.pop_back();
  const bool is_kept = scope.kept > before.kept;
  if (threw || !scope.region || (scope.slot == before.slot && !is_kept)) return;
  events_.add(SaveEvent{events_.now(), scope.region->id(), static_cast<uint32_t>(before.slot),
                        tensor, scope.is_replay, is_kept});
}

void ThreadRecorder::load(const Region& region, size_t slot) {
  events_.add(LoadEvent{events_.now(), region.id(), static_cast<uint32_t>(slot)});
}

void ThreadRecorder::tape_replay(const Region& region, const Region& whole, bool begins) {
  // A group of segments is a region of its own, without ops in the forward. So no op has written
  // its RegionEvent.
  if (begins && whole.id() != region.id()) {
    region_ = 0;
    events_.add(
        RegionEvent{events_.now(), region.id(), whole.id(), 0, 0, ids_.text(region.label())});
  }
  replay(region, begins, false);
}

bool ThreadRecorder::replay(const Region& region, bool begins, bool from_function) {
  if (begins) {
    replays_.emplace_back(ReplayEvent{events_.now(), 0, region.id(), from_function, false},
                          std::uncaught_exceptions());
    record_ = OpEvent::kNoRecord;
    return false;
  }
  if (replays_.empty()) return false;
  auto [replay, exceptions] = replays_.back();
  replays_.pop_back();
  replay.end_ns = events_.now();
  replay.threw = std::uncaught_exceptions() > exceptions;
  events_.add(replay);
  return replay.threw;
}

/// Marks the running ops as stopped, because the exception that stops a replay is not their error.
void ThreadRecorder::replay_stops() {
  if (!saves_.empty() && ops_.count > 0) {
    // The op does not return, so count the tensor that it saved, if it is new, as its result.
    OpEvent& op = ops_.innermost()->event;
    const RecordedTensor& saved = saves_.back().second;
    if (!op.was_given(saved.address)) op.results.push_back(saved);
  }
  for (size_t i = ops_.count; i > 0 && ops_.all[i - 1].event.phase == OpPhase::kReplay; --i)
    ops_.all[i - 1].is_stopped = true;
}

void ThreadRecorder::run_record(size_t record, bool begins) {
  record_ = begins ? static_cast<uint32_t>(record) : OpEvent::kNoRecord;
  record_is_new_ = begins;
}

void ThreadRecorder::call(const TraceScope& scope, const NamedCall& call, CallStep step) {
  if (scope.region) write_region(scope);
  if (step == CallStep::kBegins) calls_.push_back(call.name);
  events_.add(CallEvent{events_.now(), scope.region ? scope.region->id() : 0, ids_.text(call.name),
                        ids_.text(policy_name(call.policy)), step, scope.is_replay});
}

void ThreadRecorder::end_call(const TraceScope& scope, bool threw) {
  if (calls_.empty()) return;  // the call began before the recording
  events_.add(CallEvent{events_.now(), scope.region ? scope.region->id() : 0,
                        ids_.text(calls_.back()), 0, threw ? CallStep::kThrows : CallStep::kEnds,
                        scope.is_replay});
  calls_.pop_back();
}

void ThreadRecorder::memory(const void* address, int64_t bytes, c10::Device device) {
  // Events inside an op need only their order, so no clock is read.
  const RunningOp* const op = ops_.innermost();
  const TimeNs time_ns = op ? events_.last_ns() : events_.now();
  events_.add(MemoryEvent{time_ns, reinterpret_cast<uint64_t>(address), bytes, ids_.device(device),
                          op ? op->event.number : 0});
}

void ThreadRecorder::mark(std::string_view name) {
  events_.add(MarkEvent{events_.now(), ids_.text(name)});
}

void ThreadRecorder::plan(std::string_view label, const PlannedBytes& planned,
                          const std::function<std::string()>& json) {
  if (!plans_.emplace(label, planned).second) return;
  events_.add(PlanEvent{events_.now(), ids_.text(label), planned.budget, planned.predicted_peak,
                        planned.plain_peak, ids_.text(json())});
}

/// Writes a region event unless this region was the last one written.
void ThreadRecorder::write_region(const TraceScope& scope) {
  if (scope.region->id() == region_) return;
  region_ = scope.region->id();
  const auto replayer = scope.whole->replayer();
  tape_ = replayer ? replayer->tape() : nullptr;
  events_.add(RegionEvent{events_.now(), region_, scope.whole->id(),
                          scope.parent ? scope.parent->id() : 0, static_cast<uint32_t>(scope.depth),
                          ids_.text(scope.region->label())});
}

}  // namespace remat
