// SPDX-License-Identifier: BSD-3-Clause

// Finding the tape's value for each slot.
#include "tape_cutter.h"
#include "tape_recorder.h"
#include "tensor_hash.h"
#include "unseen.h"

namespace remat {
namespace {

/// True if `op` saves `tensor`, which it has made or written, with bytes that it has not written.
bool leaves_gaps(const OpInfo& op, const at::Tensor& tensor) {
  const bool has_byte_gaps = op.facts().has(OpFact::kLeavesByteGaps);
  return op.facts().has(OpFact::kLeavesGaps) ||
         (has_byte_gaps && tensor.scalar_type() == c10::kByte);
}

}  // namespace

TapeRecorder::NewSlot TapeRecorder::new_slot() {
  auto& slots = part().slots;
  slots.emplace_back();
  return {.part = part_number(),
          .index = slots.size() - 1,
          .number = cutter_ ? cutter_->next_slot() : 0};
}

void TapeRecorder::hold_slot(const NewSlot& slot, const at::Tensor& tensor) {
  held_slots_.push_back({part_number(), slot.index, tensor_data(tensor)});
}

void TapeRecorder::add_slot(const at::Tensor& tensor) {
  if (gave_up()) return;
  if (C10_UNLIKELY(is_of_python_class(tensor))) return add_wrapper_slot(tensor);
  const NewSlot slot = new_slot();
  if (!op_.runs) return resolve(slot, tensor, ref_of(tensor), /*in_op=*/false);
  const TapeRef ref = given_ref(tensor);
  if (ref.defined()) return resolve(slot, tensor, ref, /*in_op=*/false);
  op_.pending.push_back({slot, tensor_data(tensor), {}});
}

void TapeRecorder::resolve_pending() {
  if (op_.pending.empty()) return;
  const auto pending = std::exchange(op_.pending, {});
  for (const auto& [slot, tensor, original] : pending) {
    if (original.defined()) {
      resolve_copy(slot, tensor, original);
    } else {
      resolve(slot, tensor, ref_of(tensor), /*in_op=*/true);
    }
  }
}

// Handles what a nested region keeps before a write. Unwritten bytes differ each time.
void TapeRecorder::add_copy_slot(const at::Tensor& copy, const at::Tensor& original,
                                 bool after_op) {
  if (gave_up()) return;
  const NewSlot slot = new_slot();
  if (op_.runs && after_op) {
    op_.pending.push_back({slot, tensor_data(copy), original});
  } else {
    resolve_copy(slot, copy, original);
  }
}

void TapeRecorder::resolve_copy(const NewSlot& slot, const at::Tensor& copy,
                                const at::Tensor& original) {
  if (gave_up()) return;
  const uint32_t value = unsupported(original) ? TapeValue::kNone : value_of(original);
  if (value == TapeValue::kNone) return resolve(slot, copy, {}, /*in_op=*/false);
  TapeValue& of = tape_.values_[value];
  if (of.is_uninitialised && copy.nbytes() > kMostBytes) {
    if (cutter_) cutter_->plans_slot(slot.number, {});
    hold_slot(slot, copy);
  } else {
    const bool of_storage = copy.nbytes() == original.storage().nbytes();
    resolve(slot, copy, {value, layout_of(of_storage ? copy : original, of)}, /*in_op=*/false);
  }
}

/// The value of an argument that the op does not write; undefined for other tensors.
TapeRef TapeRecorder::given_ref(const at::Tensor& tensor) const {
  const auto given = op_.given_tensors.find(tensor.unsafeGetTensorImpl());
  if (!given || op_.written_values.contains(op_.given[*given].value)) return {};
  return op_.given[*given];
}

bool TapeRecorder::is_of_last_record(uint32_t value) const {
  const TapeValue& made = tape_.values_[value];
  return made.source == TapeValue::Source::kRecord && made.number + 1 == tape_.records_.size();
}

bool TapeRecorder::is_outside(const at::Tensor& tensor) const {
  return storages_.find(memory_of(tensor)).is_outside();
}

void TapeRecorder::save_value(const at::Tensor& tensor, Policy policy) {
  if (gave_up()) return;
  const TapeRef ref = ref_of(tensor);
  if (ref.defined()) cutter_->save(ref, tensor, is_outside(tensor), policy);
}

// In a replay of an outer region a tensor from outside may be a shadow by now: Note [Shadows].
void TapeRecorder::save_results(const OpCall& call, Policy policy) {
  for_each_result_tensor(call, [&](const at::Tensor& tensor) {
    const void* const memory = memory_of(tensor);
    if (memory && storages_.value(memory) != TapeValue::kNone) save_value(tensor, policy);
  });
}

// Note [The value before a write]: an in-place op whose backward needs the earlier value saves a
// copy that autograd makes unobserved. It is the value that the op's record replaces.
void TapeRecorder::resolve(const NewSlot& slot, const at::Tensor& tensor, TapeRef found,
                           bool in_op) {
  if (gave_up()) return;
  TapeRef& ref = part().slots[slot.index].ref = found;
  const bool is_of_op = in_op && !op_.makes_views && ref.defined() && is_of_last_record(ref.value);
  // Memory from outside may be written before backward if nobody reads it there: versions tell.
  const bool is_from_outside =
      ref.defined() && tape_.values_[ref.value].source == TapeValue::Source::kOutside;
  if (tape_.has_hashes_ && !is_from_outside && !(is_of_op && leaves_gaps(*op_.record.op, tensor)))
    part().slots[slot.index].hash = hash_of(tensor);
  if (ref.defined()) {
    if (!hold_unwritten(tensor, ref, kMostBytes)) return give_up(kUnwritten);
    if (cutter_ && !gave_up()) cutter_->read_for_slot(slot.number, ref, tensor, is_outside(tensor));
    return;
  }
  const bool is_copy = in_op && !op_.makes_views && op_.written.size() == 1 && has_layout(tensor) &&
                       tensor.scalar_type() == op_.written[0].tensor.scalar_type() &&
                       tensor.sizes() == op_.written[0].tensor.sizes() &&
                       tensor.strides() == op_.written[0].tensor.strides();
  TapeRef before;
  if (is_copy) {
    const uint32_t value = op_.written[0].before;
    before = {value, layout_of(op_.written[0].tensor, tape_.values_[value])};
  }
  // For a copy that no plan covers, nothing else is kept.
  const bool is_planned = !cutter_ || cutter_->plans_slot(slot.number, before);
  if (is_copy && is_planned) {
    ref = before;
  } else {
    hold_slot(slot, tensor);
  }
}

}  // namespace remat
