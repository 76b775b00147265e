// SPDX-License-Identifier: BSD-3-Clause

#include "thread_recorder.h"

#include <ATen/core/List.h>
#include <c10/util/Exception.h>

#include <exception>
#include <string>
#include <utility>

#include <remat/policy/policy.h>
#include <remat/tape/region.h>
#include <remat/tape/replayer.h>
#include <remat/tape/tape.h>

namespace remat {
namespace {

/// What a thread keeps before it writes.
constexpr size_t kBufferBytes = size_t{64} << 10U;

/// What the engine calls the stretch around a node, which has an event of its own.
constexpr std::string_view kFrame = "autograd::engine::evaluate_function: ";

/// "aten::mul.Tensor"
std::string full_name(const char* name, const char* overload) {
  std::string text(name);
  if (overload && *overload) text.append(".").append(overload);
  return text;
}

uint64_t number_of(const void* address) {
  return reinterpret_cast<uint64_t>(address);
}

}  // namespace

ThreadRecorder::ThreadRecorder(std::shared_ptr<RecordingWriter> writer, uint32_t number,
                               const RecordingClock& clock)
    : writer_(std::move(writer)),
      number_(number),
      clock_(clock),
      layouts_(*writer_),
      frame_(writer_->string(kFrame)) {}

void ThreadRecorder::begin_op(const at::RecordFunction& function) {
  if (running_ops_ == ops_.size()) ops_.emplace_back();
  RunningOp& running = ops_[running_ops_];
  OpEvent& op = running.event;
  std::vector<RecordedTensor> arguments = std::move(op.arguments);
  std::vector<RecordedTensor> results = std::move(op.results);
  arguments.clear();
  results.clear();
  for (const c10::IValue& argument : function.inputs()) add_tensors(argument, arguments);
  ++running_ops_;
  op = OpEvent();
  op.name = name_of(function);
  op.depth = depth_;
  running.is_frame = op.name == frame_;
  if (!running.is_frame) ++depth_;
  op.arguments = std::move(arguments);
  op.results = std::move(results);
  if (!replays_.empty()) {
    op.phase = OpPhase::kReplay;
    op.region = replays_.back().region;
    op.record = record_;
  } else if (!nodes_.empty()) {
    op.phase = OpPhase::kBackward;
  }
  running.exceptions = std::uncaught_exceptions();
  op.begin_ns = now();
}

void ThreadRecorder::end_op(const at::RecordFunction& function) {
  if (running_ops_ == 0) return;  // it began before the recording
  const RunningOp& running = ops_[--running_ops_];
  if (running.is_frame) return;
  --depth_;
  OpEvent& op = ops_[running_ops_].event;
  op.end_ns = now();
  op.threw = std::uncaught_exceptions() > running.exceptions;
  for (const c10::IValue& result : function.outputs()) add_tensors(result, op.results);
  // A composite op is where the ops are that it calls.
  if (running_ops_ > 0 && ops_[running_ops_ - 1].event.region == 0) {
    OpEvent& outer = ops_[running_ops_ - 1].event;
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
  op.phase = scope.is_replay ? OpPhase::kReplay : OpPhase::kForward;
  op.first_slot = op.end_slot = static_cast<uint32_t>(scope.slot);
  op.kept = static_cast<uint32_t>(scope.kept);
  if (tape_ && !scope.is_replay) op.record = static_cast<uint32_t>(tape_->records().size());
}

void ThreadRecorder::after_op(const TraceScope& scope) {
  if (running_ops_ == 0 || !scope.region) return;
  OpEvent& op = ops_[running_ops_ - 1].event;
  if (op.region != scope.region->id()) return;  // an outer region's, which sees the op as well
  op.end_slot = static_cast<uint32_t>(scope.slot);
  op.kept = static_cast<uint32_t>(scope.kept) - op.kept;
}

void ThreadRecorder::before_save(const TraceScope& scope, const at::Tensor& tensor) {
  if (scope.region) tell_of(scope);
  saves_.push_back({scope.slot, scope.kept, layouts_.of(tensor)});
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

void ThreadRecorder::replay(const Region& region, bool begins) {
  if (begins) {
    replays_.push_back({now(), 0, region.id(), false, false});
    record_ = OpEvent::kNoRecord;
  } else if (!replays_.empty()) {
    replays_.back().end_ns = now();
    add(replays_.back());
    replays_.pop_back();
  }
}

void ThreadRecorder::run_record(size_t record, bool begins) {
  record_ = begins ? static_cast<uint32_t>(record) : OpEvent::kNoRecord;
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
  // In an op the order is what counts.
  const TimeNs time_ns = running_ops_ > 0 ? now_ns_ : now();
  add(MemoryEvent{time_ns, number_of(address), bytes, device_name(device), 0});
}

void ThreadRecorder::mark(std::string_view name) {
  add(MarkEvent{now(), writer_->string(name)});
}

void ThreadRecorder::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_closed_ = true;
  writer_->write_block(number_, buffer_.bytes());
  buffer_.clear();
}

/// Names of schemas stay where they are; a text that the program has named a stretch by does not.
StringId ThreadRecorder::name_of(const at::RecordFunction& op) {
  const auto known = schema_names_.find(op.name());
  if (known != schema_names_.end()) return known->second;
  if (std::string_view(op.name()).substr(0, kFrame.size()) == kFrame) return frame_;
  const StringId id = writer_->string(full_name(op.name(), op.overload_name()));
  if (op.operator_name()) schema_names_.emplace(op.name(), id);
  return id;
}

StringId ThreadRecorder::device_name(c10::Device device) {
  const int32_t number = static_cast<int32_t>(device.type()) * 256 + device.index();
  if (number != device_) {
    device_ = number;
    device_name_ = writer_->string(device.str());
  }
  return device_name_;
}

void ThreadRecorder::add_tensors(const c10::IValue& value, std::vector<RecordedTensor>& to) {
  if (value.isTensor()) {
    to.push_back(layouts_.of(value.toTensor()));
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (!item.isTensor() && !item.isNone()) return;
      to.push_back(item.isTensor() ? layouts_.of(item.toTensor()) : RecordedTensor{});
    }
  }
}

/// Of a region that is not the last one that the recording was told of.
void ThreadRecorder::tell_of(const TraceScope& scope) {
  if (scope.region->id() == told_region_) return;
  told_region_ = scope.region->id();
  const auto replayer = scope.whole->replayer();
  tape_ = replayer ? replayer->tape() : nullptr;
  add(RegionEvent{now(), told_region_, scope.whole->id(), 0, static_cast<uint32_t>(scope.depth),
                  writer_->string(scope.region->label())});
}

template <class Event>
void ThreadRecorder::add(const Event& event) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_closed_) return;
  buffer_.add(event);
  if (buffer_.bytes().size() < kBufferBytes) return;
  writer_->write_block(number_, buffer_.bytes());
  buffer_.clear();
}

}  // namespace remat
