// SPDX-License-Identifier: BSD-3-Clause

#include "thread_recorder.h"

#include <c10/util/Exception.h>

#include <pthread.h>

#include <exception>
#include <string>
#include <utility>

#include <remat/policy/policy.h>
#include <remat/tape/region.h>
#include <remat/tape/region_run.h>
#include <remat/tape/replayer.h>
#include <remat/tape/scope.h>
#include <remat/tape/tape.h>

namespace remat {
namespace {

/// Size at which a thread's buffer is written out.
constexpr size_t kBufferBytes = size_t{64} << 10U;

/// The engine's name for the range around a node. The node has an event of its own.
constexpr std::string_view kFrame = "autograd::engine::evaluate_function: ";

/// A name such as "aten::mul.Tensor".
std::string full_name(const char* name, const char* overload) {
  std::string text(name);
  if (overload && *overload) text.append(".").append(overload);
  return text;
}

std::string thread_name() {
  char name[16] = {};
  pthread_getname_np(pthread_self(), name, sizeof name);
  return name;
}

uint64_t number_of(const void* address) {
  return reinterpret_cast<uint64_t>(address);
}

}  // namespace

ThreadRecorder::ThreadRecorder(std::shared_ptr<RecordingWriter> writer, uint32_t number,
                               const RecordingClock& clock, bool source_lines)
    : writer_(std::move(writer)),
      number_(number),
      clock_(clock),
      arguments_(*writer_),
      frame_(writer_->string(kFrame)),
      lines_(*writer_, source_lines) {
  add(ThreadEvent{now(), at::RecordFunction::currentThreadId(), writer_->string(thread_name())});
}

// Note [Ops inside of what looks at an op]: reading the device of a tensor of a Python class, and
// creating Python frames, may run ops (in finalizers too). So an op is entered as running, in a
// place that does not move, before its arguments are read, and stays so until its results have been
// read.
void ThreadRecorder::begin_op(const at::RecordFunction& function) {
  const RunningOp* const caller = caller_here();
  if (running_ops_ == ops_.size()) ops_.emplace_back();
  RunningOp& running = ops_[running_ops_++];
  running.clear();
  OpEvent& op = running.event;
  op.name = name_of(function);
  op.sequence = static_cast<uint64_t>(function.seqNr());
  op.depth = depth_;
  running.is_frame = op.name == frame_;
  running.replays = replays_.size();
  if (running.is_frame) {
    if (frames_++ == 0) lines_.begin_backward();
  } else {
    ++depth_;
    op.number = ++op_number_;
    begin_in(op, caller);
    for (const c10::IValue& argument : function.inputs()) arguments_.add(argument, op);
    op.line = caller ? caller->event.line : lines_.here(is_called_by_engine());
  }
  running.exceptions = std::uncaught_exceptions();
  op.begin_ns = now();
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
  if (running_ops_ == 0) return nullptr;
  RunningOp& innermost = ops_[running_ops_ - 1];
  return innermost.is_frame || innermost.replays != replays_.size() ? nullptr : &innermost;
}

/// Fills in the op's region and phase as far as they are known before a region sees the op.
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
    const ReplayEvent& replay = replays_.back().event;
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

/// True for what runs in a backward pass or from a tape.
bool ThreadRecorder::is_called_by_engine() const {
  if (!replays_.empty()) return !replays_.back().event.from_function;
  return frames_ > 0 || !nodes_.empty();
}

void ThreadRecorder::end_op(const at::RecordFunction& function) {
  if (running_ops_ == 0) return;  // it began before the recording
  RunningOp& running = ops_[running_ops_ - 1];
  if (running.is_frame) {
    --running_ops_;
    if (--frames_ == 0) lines_.end_backward();
    return;
  }
  OpEvent& op = running.event;
  op.end_ns = now();
  op.threw = std::uncaught_exceptions() > running.exceptions && !running.is_stopped;
  try {
    for (const c10::IValue& result : function.outputs()) arguments_.add_tensors(result, op.results);
  } catch (const std::exception&) {
    op.results.clear();  // a class whose device cannot be read: the op is over all the same
  }
  --running_ops_;
  --depth_;
  // A replay refused this op before any region reported that it sees it.
  if (op.threw && op.phase == OpPhase::kReplay && !running.inner_threw) op.is_seen = true;
  if (op.threw && running_ops_ > 0) ops_[running_ops_ - 1].inner_threw = true;
  // A composite op belongs to the region of the ops that it calls.
  RunningOp* const caller = caller_here();
  if (caller && caller->event.region == 0) {
    OpEvent& outer = caller->event;
    outer.region = op.region;
    outer.phase = op.phase;
    outer.first_slot = outer.end_slot = op.first_slot;
  }
  add(op);
}

void ThreadRecorder::begin_node(const at::RecordFunction& node) {
  nodes_.push_back({now(), 0, writer_->string(node.name()), static_cast<uint64_t>(node.seqNr()),
                    node.forwardThreadId()});
}

void ThreadRecorder::end_node() {
  if (nodes_.empty()) return;
  nodes_.back().end_ns = now();
  add(nodes_.back());
  nodes_.pop_back();
}

void ThreadRecorder::before_op(const TraceScope& scope) {
  if (running_ops_ == 0 || !scope.region) return;
  tell_of(scope);
  OpEvent& op = ops_[running_ops_ - 1].event;
  op.region = scope.region->id();
  const bool in_replay = scope.is_replay || !replays_.empty();
  op.phase = in_replay ? OpPhase::kReplay : OpPhase::kForward;
  op.is_seen = true;
  op.call = name_of_call(scope.saved_call);
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
  if (running_ops_ == 0 || !scope.region) return;
  OpEvent& op = ops_[running_ops_ - 1].event;
  if (op.region != scope.region->id()) return;  // an outer region, which sees the op as well
  op.end_slot = static_cast<uint32_t>(scope.slot);
  op.kept = static_cast<uint32_t>(scope.kept) - op.kept;
}

void ThreadRecorder::before_save(const TraceScope& scope, const at::Tensor& tensor) {
  if (scope.region) tell_of(scope);
  saves_.push_back({scope.slot, scope.kept, arguments_.of(tensor)});
}

void ThreadRecorder::after_save(const TraceScope& scope, bool threw) {
  if (saves_.empty()) return;
  const PendingSave save = saves_.back();
  saves_.pop_back();
  const bool is_kept = scope.kept > save.kept;
  if (threw || !scope.region || (scope.slot == save.slot && !is_kept)) return;
  add(SaveEvent{now(), scope.region->id(), static_cast<uint32_t>(save.slot), save.tensor,
                scope.is_replay, is_kept});
}

void ThreadRecorder::load(const Region& region, size_t slot) {
  add(LoadEvent{now(), region.id(), static_cast<uint32_t>(slot)});
}

void ThreadRecorder::tape_replay(const Region& region, const Region& whole, bool begins) {
  // No op of the forward has introduced the region of a group of segments.
  if (begins && whole.id() != region.id()) {
    told_region_ = 0;
    add(RegionEvent{now(), region.id(), whole.id(), 0, 0, writer_->string(region.label())});
  }
  replay(region, begins, false);
}

bool ThreadRecorder::replay(const Region& region, bool begins, bool from_function) {
  if (begins) {
    replays_.push_back({{now(), 0, region.id(), from_function, false}, std::uncaught_exceptions()});
    record_ = OpEvent::kNoRecord;
  } else if (!replays_.empty()) {
    ReplayEvent& replay = replays_.back().event;
    replay.end_ns = now();
    replay.threw = std::uncaught_exceptions() > replays_.back().exceptions;
    add(replay);
    const bool threw = replay.threw;
    replays_.pop_back();
    return threw;
  }
  return false;
}

/// The running ops end by the replay's stop exception, which is no error.
void ThreadRecorder::replay_stops() {
  if (!saves_.empty() && running_ops_ > 0) {
    // An op that saves its own result never gets to return it.
    OpEvent& op = ops_[running_ops_ - 1].event;
    const RecordedTensor& saved = saves_.back().tensor;
    if (!op.was_given(saved.address)) op.results.push_back(saved);
  }
  for (size_t i = running_ops_; i > 0 && ops_[i - 1].event.phase == OpPhase::kReplay; --i)
    ops_[i - 1].is_stopped = true;
}

void ThreadRecorder::run_record(size_t record, bool begins) {
  record_ = begins ? static_cast<uint32_t>(record) : OpEvent::kNoRecord;
  record_is_new_ = begins;
}

void ThreadRecorder::call(const TraceScope& scope, const NamedCall& call, CallStep step) {
  if (scope.region) tell_of(scope);
  if (step == CallStep::kBegins) calls_.push_back(call.name);
  add(CallEvent{now(), scope.region ? scope.region->id() : 0, writer_->string(call.name),
                writer_->string(policy_name(call.policy)), step, scope.is_replay});
}

void ThreadRecorder::end_call(const TraceScope& scope, bool threw) {
  if (calls_.empty()) return;  // it began before the recording
  add(CallEvent{now(), scope.region ? scope.region->id() : 0, writer_->string(calls_.back()), 0,
                threw ? CallStep::kThrows : CallStep::kEnds, scope.is_replay});
  calls_.pop_back();
}

void ThreadRecorder::memory(const void* address, int64_t bytes, c10::Device device) {
  // Within an op only the order matters, so no clock is read.
  const bool in_op = running_ops_ > 0;
  const TimeNs time_ns = in_op ? now_ns_ : now();
  const uint64_t op = in_op ? ops_[running_ops_ - 1].event.number : 0;
  add(MemoryEvent{time_ns, number_of(address), bytes, device_name(device), op});
}

void ThreadRecorder::mark(std::string_view name) {
  add(MarkEvent{now(), writer_->string(name)});
}

void ThreadRecorder::plan(std::string_view label, const PlannedBytes& planned,
                          const std::function<std::string()>& json) {
  if (!plans_.emplace(label, planned).second) return;
  add(PlanEvent{now(), writer_->string(label), planned.budget, planned.predicted_peak,
                planned.plain_peak, writer_->string(json())});
}

void ThreadRecorder::flush() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed_) return;
  write_buffer();
}

void ThreadRecorder::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(is_closed_, true)) return;
  write_buffer();
}

void ThreadRecorder::write_buffer() {
  writer_->write_block(number_, buffer_.bytes());
  buffer_.clear();
}

/// Names of schemas have stable addresses and are cached; names that the program gave to ranges are
/// not.
StringId ThreadRecorder::name_of(const at::RecordFunction& op) {
  const auto known = schema_names_.find(op.name());
  if (known != schema_names_.end()) return known->second;
  if (std::string_view(op.name()).substr(0, kFrame.size()) == kFrame) return frame_;
  const StringId id = writer_->string(full_name(op.name(), op.overload_name()));
  if (op.operator_name()) schema_names_.emplace(op.name(), id);
  return id;
}

StringId ThreadRecorder::name_of_call(const NamedCall* call) {
  if (!call) return 0;
  if (call->name != saved_call_) {
    saved_call_ = call->name;
    saved_call_id_ = writer_->string(saved_call_);
  }
  return saved_call_id_;
}

StringId ThreadRecorder::device_name(c10::Device device) {
  const int32_t number = static_cast<int32_t>(device.type()) * 256 + device.index();
  if (number != device_) {
    device_ = number;
    device_name_ = writer_->string(device.str());
  }
  return device_name_;
}

/// Writes a region event unless this region was the last one written.
void ThreadRecorder::tell_of(const TraceScope& scope) {
  if (scope.region->id() == told_region_) return;
  told_region_ = scope.region->id();
  const auto replayer = scope.whole->replayer();
  tape_ = replayer ? replayer->tape() : nullptr;
  add(RegionEvent{now(), told_region_, scope.whole->id(), scope.parent ? scope.parent->id() : 0,
                  static_cast<uint32_t>(scope.depth), writer_->string(scope.region->label())});
}

template <class Event>
void ThreadRecorder::add(const Event& event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed_) return;
  buffer_.add(event);
  if (buffer_.bytes().size() < kBufferBytes) return;
  write_buffer();
}

}  // namespace remat
