// SPDX-License-Identifier: BSD-3-Clause

// Turning ops into records.
#include <remat/tape/tape_recorder.h>

#include <c10/core/GradMode.h>
#include <c10/util/irange.h>

#include <limits>
#include <optional>

#include <remat/engine/hash_mix.h>
#include <remat/engine/host_copies.h>
#include <remat/engine/storage_bytes.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/write_kind.h>

namespace remat {
namespace {

constexpr size_t kMaxArguments = 64;
constexpr const char* kUnwrittenPart =
    "more than 4 MiB that no op wrote, after empty(), of which it writes parts";

/// True for ops that write an argument without reading it. Library ops count, too, because their
/// schemas do not say whether they read an argument that they write.
bool overwrites(const OpInfo& op) {
  return op.is_of_library() || op.operator_name().overload_name.ends_with("out") ||
         op.facts().has(OpFact::kOverwrites) || op.facts().has(OpFact::kFills);
}

}  // namespace

void TapeRecorder::cut(std::unique_ptr<TapeCutter> cutter) {
  cutter_ = std::move(cutter);
  values_.mark_cut();
  slots_.cut(*cutter_);
}

void TapeRecorder::note_mode() {
  if (gave_up() || tape_.is_under_mode_) return;
  tape_.is_under_mode_ = tape_.has_hashes_ = true;
}

void TapeRecorder::note_settings(const OpCall& call) {
  if (!gave_up())
    values_.give_up(call, "a setting that the function changes (threads, precision, libraries)");
}

void TapeRecorder::note_streams(const OpCall& call) {
  if (!gave_up())
    values_.give_up(call, "another stream or current device than the region began with");
}

// Views that a Python handler makes begin no segment, because a step profile does not count them.
void TapeRecorder::enter_segment(const OpInfo& next) {
  if (gave_up() || op_.runs || (slots_.in_handled() && next.is_plain_view())) return;
  const size_t number = tape_.records().size();
  if (cutter_->begins(number)) cutter_->enter_next(number);
}

void TapeRecorder::before_op(const OpCall& call) {
  if (gave_up()) return;
  if (op_.runs) return values_.give_up("an op that threw, after which the function went on");
  const OpInfo& info = call.info();
  if (info.is_communication()) return values_.give_up(call, "a collective that replays call again");
  if (cutter_) enter_segment(info);
  op_.runs = true;
  op_.has_run = false;
  op_.given.clear();
  op_.given_tensors.clear();
  op_.written.clear();
  op_.written_values.clear();
  op_.makes_views = (info.is_view() && !info.writes()) || info.changes_metadata();
  if (info.facts().has(OpFact::kChangesMemory))
    return values_.give_up(call, "memory that changes its size");
  if (info.facts().has(OpFact::kMakesTangents))
    return values_.give_up(call, "a tensor with a tangent");
  if (op_.makes_views) return;
  if (info.argument_count() > kMaxArguments) return values_.give_up(call, "more than 64 arguments");
  op_.record = {.op = &info,
                .first_argument = narrow(tape_.arguments_.size()),
                .refs = {narrow(tape_.refs_.size())},
                .outputs = {narrow(tape_.outputs_.size())},
                .writes = {narrow(tape_.writes_.size())},
                .grad_mode = c10::GradMode::is_enabled()};
  if (cutter_) cutter_->begin_op(info);
  for (size_t i = 0; i < info.argument_count() && !gave_up(); ++i) add_argument(call, i);
  op_.states.clear();
  if (generators_ && (call.may_draw() || info.is_of_library()))
    op_.states = read_generators(*generators_);
}

void TapeRecorder::add_argument(const OpCall& call, size_t i) {
  const c10::IValue& value = call.argument(i);
  if (value.isTensor()) {
    op_.record.tensors |= uint64_t{1} << i;
    tape_.arguments_.emplace_back();
    return add_ref(call, i, value.toTensor());
  }
  if (value.isTensorList() || value.isOptionalTensorList()) {
    const auto list = value.toListRef();
    op_.record.lists |= uint64_t{1} << i;
    if (value.isOptionalTensorList()) op_.record.tensors |= uint64_t{1} << i;
    tape_.arguments_.emplace_back(static_cast<int64_t>(list.size()));
    for (const c10::IValue& element : list)
      add_ref(call, i, element.isTensor() ? element.toTensor() : at::Tensor());
    return;
  }
  if (value.isStorage() || value.isObject() || value.isGenericDict() || value.isTuple())
    return values_.give_up(call, "an argument that may have tensors inside");
  const bool waits_instead = value.isBool() && value.toBool() &&
                             call.info().op().schema().arguments()[i].name() == "non_blocking" &&
                             HostCopy(call, i).returns_early();
  tape_.arguments_.push_back(C10_UNLIKELY(waits_instead) ? c10::IValue(false) : value);
}

void TapeRecorder::add_ref(const OpCall& call, size_t i, const at::Tensor& tensor) {
  if (gave_up()) return;
  if (op_.record.refs.count == std::numeric_limits<uint16_t>::max())
    return values_.give_up(call, "more than 65,534 tensors");
  ++op_.record.refs.count;
  if (!tensor.defined()) {
    tape_.refs_.emplace_back();
    return;
  }
  if (const char* const what = ValueRecorder::unsupported(tensor))
    return values_.give_up(call, what);
  TapeRef ref = values_.ref_of(tensor);
  if (!ref.defined()) return values_.give_up(call, "a tensor that no op of the function has made");
  const bool writes = call.writes_argument(i);
  const bool reads = call.info().reads_data();
  const bool is_unwritten = reads && tape_.values_[ref.value].is_uninitialised;
  if (is_unwritten && writes && overwrites(call.info())) {
    make_memory_here(tensor, ref);
  } else if (is_unwritten) {
    const bool writes_part = writes && write_kind(call, i) == WriteKind::kPart;
    if (!values_.hold_unwritten(tensor, ref,
                                writes_part ? kMaxUnwrittenBytesOfPart : kMaxUnwrittenBytes))
      return values_.give_up(call, writes_part ? kUnwrittenPart : kUnwritten);
  }
  tape_.refs_.push_back(ref);
  op_.given.push_back(ref);
  op_.given_tensors.add(tensor.unsafeGetTensorImpl());
  if (cutter_ && reads) cutter_->read(ref, tensor, values_.is_outside(tensor));
  if (writes) note_write(tensor, ref.value);
}

void TapeRecorder::begin_handled(const OpCall& call) {
  if (gave_up()) return;
  if (op_.runs) return values_.give_up("an op that threw, after which the function went on");
  if (cutter_) enter_segment(call.info());
  slots_.begin_handled(call);
}

void TapeRecorder::after_op(const OpCall& call) {
  if (!op_.runs) return;
  op_.runs = false;
  op_.has_run = !gave_up();
  if (op_.has_run) add_made(call);
  op_.has_run = false;
  op_.written.clear();  // Memory that a handler made must die with the handler.
}

/// Records what the op that has run has made, written and saved.
void TapeRecorder::add_made(const OpCall& call) {
  if (op_.makes_views) {
    for_each_result_tensor(call, [&](const at::Tensor& tensor) {
      const void* const memory = memory_of(tensor);
      if (!memory) return;
      if (storages_.find(memory).is_unknown())
        return values_.give_up(call, "a copy where its schema says view");
      // t_() and other ops that change only the layout count as writes.
      const uint32_t value = storages_.value(memory);
      if (!call.info().writes() || value == TapeValue::kNone) return;
      values_.note_version(tensor, value);
      if (cutter_) cutter_->laid_out_anew(value, tensor);
    });
  } else {
    add_results(call);
    if (!gave_up()) add_writes(call);
    if (!gave_up()) end_record();
  }
  if (const auto policy = std::exchange(op_.save_next, std::nullopt))
    for_each_result_tensor(call, [&](const at::Tensor& result) { save_value(result, *policy); });
  slots_.end_op();
}

void TapeRecorder::add_results(const OpCall& call) {
  for (const auto i : c10::irange(call.info().return_count())) {
    const c10::IValue& value = call.result(i);
    size_t element = 0;
    if (value.isTensor()) {
      add_output(call, value.toTensor(), i, 0);
    } else if (value.isTensorList()) {
      for (const c10::IValue& item : value.toListRef())
        add_output(call, item.toTensor(), i, element++);
    }
  }
}

void TapeRecorder::add_output(const OpCall& call, const at::Tensor& tensor, size_t result,
                              size_t element) {
  if (gave_up() || !tensor.defined()) return;
  if (C10_UNLIKELY(is_of_python_class(tensor))) return values_.adopt_parts(tensor);
  if (const char* const what = ValueRecorder::unsupported(tensor))
    return values_.give_up(call, what);
  const void* const memory = memory_of(tensor);
  if (!memory || !values_.is_new(memory)) return;
  const uint32_t value = values_.add_made(tensor, call.info().is_uninitialised());
  tape_.outputs_.push_back({.result = static_cast<uint16_t>(result),
                            .element = static_cast<uint16_t>(element),
                            .ref = values_.ref_in(value, tensor)});
  if (cutter_ && has_own_memory(tensor.storage())) cutter_->allocated(value, tensor.storage());
  note_made(op_.record.outputs.count++, value, tensor);
}

void TapeRecorder::add_writes(const OpCall& call) {
  for (const RecordedOp::Write& write : op_.written) {
    if (memory_of(write.tensor) != write.memory)
      return values_.give_up(call, "an argument that has other memory after the op");
    const uint32_t value = values_.add_written(write.tensor, write.origin);
    tape_.writes_.push_back({write.before, value});
    note_made(size_t{op_.record.outputs.count} + op_.record.writes.count++, value, write.tensor);
  }
}

/// Notes that the current record makes `value` as its result number `result`.
void TapeRecorder::note_made(size_t result, uint32_t value, const at::Tensor& tensor) {
  if (!cutter_) return;
  cutter_->made(tape_.records_.size(), result, values_.ref_in(value, tensor), tensor,
                values_.is_outside(tensor));
}

void TapeRecorder::end_record() {
  if (op_.record.outputs.count == 0 && op_.record.writes.count == 0) return drop_record();
  drop_current(op_.states);
  op_.record.generators = {narrow(tape_.generators_.size()),
                           static_cast<uint16_t>(op_.states.size())};
  for (GeneratorState& state : op_.states) tape_.generators_.push_back(std::move(state));
  tape_.records_.push_back(op_.record);
  auto& hashes = tape_.op_hashes_;
  hashes.push_back(
      hash_mix(hashes.empty() ? 0 : hashes.back(), reinterpret_cast<uintptr_t>(op_.record.op)));
  if (!tape_.has_hashes_ && !trusted_.follow(hashes.size() - 1, hashes.back()))
    tape_.has_hashes_ = true;
  if (cutter_) cutter_->end_record();
}

void TapeRecorder::drop_record() {
  tape_.arguments_.resize(op_.record.first_argument);
  tape_.refs_.resize(op_.record.refs.begin);
}

/// If another segment made the unwritten memory of `ref`, sets `ref` to new memory, which replays
/// of the open segment allocate.
void TapeRecorder::make_memory_here(const at::Tensor& tensor, TapeRef& ref) {
  if (!cutter_ || !cutter_->is_of_other_segment(ref.value)) return;
  const uint32_t value = values_.add_memory(tensor, ref.value);
  cutter_->made_memory(value, ref.value);
  ref = values_.ref_of(tensor);
}

void TapeRecorder::note_write(const at::Tensor& tensor, uint32_t value) {
  const void* const memory = memory_of(tensor);
  if (!memory || op_.written_values.contains(value)) return;
  keep_value(tensor, value);
  op_.written_values.add(value);
  op_.written.push_back({tensor, value, memory, storages_.find(memory)});
}

void TapeRecorder::before_saved_write(const at::Tensor& tensor) {
  if (gave_up() || ValueRecorder::unsupported(tensor) || !memory_of(tensor)) return;
  const uint32_t value = values_.value_of(tensor);
  if (value != TapeValue::kNone) keep_value(tensor, value);
}

/// Call it before a write to `tensor`, which has `value`. Whatever holds an alias of `tensor` then
/// copies its memory.
void TapeRecorder::keep_value(const at::Tensor& tensor, uint32_t value) {
  if (cutter_) cutter_->before_write(value, tensor);
  values_.before_write(tensor, value);
}

void TapeRecorder::save_value(const at::Tensor& tensor, Policy policy) {
  if (gave_up()) return;
  const TapeRef ref = values_.ref_of(tensor);
  if (ref.defined()) cutter_->save(ref, tensor, values_.is_outside(tensor), policy);
}

// Skips shadows of an outer region's replay, which have no value: see Note [Shadows].
void TapeRecorder::save_results(const OpCall& call, Policy policy) {
  for_each_result_tensor(call, [&](const at::Tensor& tensor) {
    const void* const memory = memory_of(tensor);
    if (memory && storages_.value(memory) != TapeValue::kNone) save_value(tensor, policy);
  });
}

void TapeRecorder::finish(OutsideLog& outside) {
  if (op_.runs) values_.give_up("an op that threw, after which the function went on");
  op_.written.clear();
  if (gave_up()) return values_.refuse_if_strict();  // The function may have caught the error.
  if (cutter_) cutter_->finish(tape_.records_.size(), slots_.count());
  const std::vector<bool> needed = cutter_ ? cutter_->needed() : needed_values();
  if (!cutter_) drop_tail(needed);
  values_.finish(outside, needed);
  slots_.finish();
  if (!tape_.has_hashes_) tape_.op_hashes_ = {};
}

std::vector<bool> TapeRecorder::needed_values() const {
  std::vector<bool> needed(tape_.values_.size());
  for (const TapeSlot& slot : tape_.parts_[0].slots)
    for_each_ref(slot, [&](const TapeRef& ref) { needed[ref.value] = true; });
  const auto is_needed = [&](uint32_t value) { return needed[value]; };
  for (auto record = tape_.records_.rbegin(); record != tape_.records_.rend(); ++record) {
    if (!record->op->reads_data() || !tape_.makes_any(*record, is_needed)) continue;
    for (const TapeRef& ref : tape_.refs(*record)) {
      if (ref.defined()) needed[ref.value] = true;
    }
  }
  return needed;
}

/// Drops the records after the last needed one.
void TapeRecorder::drop_tail(const std::vector<bool>& needed) {
  auto& records = tape_.records_;
  const auto is_needed = [&](uint32_t value) { return needed[value]; };
  while (!records.empty() && !tape_.makes_any(records.back(), is_needed)) {
    const TapeRecord& record = records.back();
    tape_.arguments_.resize(record.first_argument);
    tape_.refs_.resize(record.refs.begin);
    tape_.outputs_.resize(record.outputs.begin);
    tape_.writes_.resize(record.writes.begin);
    tape_.generators_.erase(tape_.generators_.begin() + record.generators.begin,
                            tape_.generators_.end());
    records.pop_back();
  }
}

}  // namespace remat
