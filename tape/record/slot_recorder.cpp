// SPDX-License-Identifier: BSD-3-Clause

// Slots of plain tensors, of copies and of tensor subclasses.
#include <remat/tape/slot_recorder.h>

#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>
#include <memory>

#include <remat/engine/flattened_tensor.h>
#include <remat/engine/held_storage.h>
#include <remat/engine/storage_bytes.h>
#include <remat/engine/tensor_hash.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/unseen.h>

namespace remat {
namespace {

/// True if `op`, which makes `tensor` and saves it for backward, leaves bytes of `tensor`
/// unwritten.
bool leaves_gaps(const OpInfo& op, const at::Tensor& tensor) {
  const bool has_byte_gaps = op.facts().has(OpFact::kLeavesByteGaps);
  return op.facts().has(OpFact::kLeavesGaps) ||
         (has_byte_gaps && tensor.scalar_type() == c10::kByte);
}

}  // namespace

SlotRecorder::NewSlot SlotRecorder::new_slot() {
  const size_t part = part_number();
  auto& slots = tape_.parts_[part].slots;
  slots.emplace_back();
  return {.part = part, .index = slots.size() - 1, .number = count_++};
}

/// Drops the pending slots and returns true if recording was given up.
bool SlotRecorder::drop_if_gave_up() {
  if (C10_LIKELY(!values_.gave_up())) return false;
  pending_.clear();
  held_.clear();
  return true;
}

void SlotRecorder::hold(const NewSlot& slot, const at::Tensor& tensor) {
  held_.push_back({slot, tensor_data(tensor)});
}

void SlotRecorder::add(const at::Tensor& tensor) {
  if (drop_if_gave_up()) return;
  if (C10_UNLIKELY(is_of_python_class(tensor))) return add_wrapper(tensor);
  const NewSlot slot = new_slot();
  if (!op_.runs) return resolve(slot, tensor, values_.ref_of(tensor), /*in_op=*/false);
  const TapeRef ref = given_ref(tensor);
  if (ref.defined()) return resolve(slot, tensor, ref, /*in_op=*/false);
  pending_.push_back({slot, tensor_data(tensor)});
}

void SlotRecorder::end_op() {
  if (pending_.empty()) return;
  const auto pending = std::exchange(pending_, {});
  for (const auto& [slot, tensor, original] : pending) {
    if (values_.gave_up()) return;
    if (original.defined()) {
      resolve_copy(slot, tensor, original);
    } else {
      resolve(slot, tensor, values_.ref_of(tensor), /*in_op=*/true);
    }
  }
}

// Nested regions copy `original` before a write to it, so the slot gets the value of `original`.
void SlotRecorder::add_copy(const at::Tensor& copy, const at::Tensor& original, bool after_op) {
  if (drop_if_gave_up()) return;
  const NewSlot slot = new_slot();
  if (op_.runs && after_op) {
    pending_.push_back({slot, tensor_data(copy), original});
  } else {
    resolve_copy(slot, copy, original);
  }
}

void SlotRecorder::resolve_copy(const NewSlot& slot, const at::Tensor& copy,
                                const at::Tensor& original) {
  if (values_.gave_up()) return;
  const uint32_t value =
      ValueRecorder::unsupported(original) ? TapeValue::kNone : values_.value_of(original);
  if (value == TapeValue::kNone) return resolve(slot, copy, {}, /*in_op=*/false);
  TapeValue& of = tape_.values_[value];
  // A copy of unwritten memory cannot be recomputed, because the bytes differ in each run.
  if (of.is_uninitialised && copy.nbytes() > kMaxUnwrittenBytes) {
    if (cutter_) cutter_->plans_slot(slot.number, {});
    hold(slot, copy);
  } else {
    const bool of_storage = copy.nbytes() == original.storage().nbytes();
    resolve(slot, copy, values_.ref_in(value, of_storage ? copy : original), /*in_op=*/false);
  }
}

/// Returns the value of `tensor` if it is an argument that the op does not write; else undefined.
TapeRef SlotRecorder::given_ref(const at::Tensor& tensor) const {
  const auto given = op_.given_tensors.find(tensor.unsafeGetTensorImpl());
  if (!given || op_.written_values.contains(op_.given[*given].value)) return {};
  return op_.given[*given];
}

bool SlotRecorder::is_of_last_record(uint32_t value) const {
  const TapeValue& made = tape_.values_[value];
  return made.source == TapeValue::Source::kRecord && made.number + 1 == tape_.records_.size();
}

// Note [The value before a write]: an in-place op whose backward needs the earlier value saves a
// copy, which autograd makes without an op that remat sees. A tensor without a value that has the
// layout of the op's written argument is taken for that copy, so the slot gets the earlier value.
void SlotRecorder::resolve(const NewSlot& slot, const at::Tensor& tensor, TapeRef found,
                           bool in_op) {
  if (values_.gave_up()) return;
  TapeRef& ref = slot_at(slot).ref = found;
  const bool is_of_op = in_op && !op_.makes_views && ref.defined() && is_of_last_record(ref.value);
  // Outside memory may legally be overwritten before backward if the node that saved it never reads
  // it. A hash taken now would then report a false mismatch, so take none.
  const bool is_from_outside =
      ref.defined() && tape_.values_[ref.value].source == TapeValue::Source::kOutside;
  if (tape_.has_hashes_ && !is_from_outside && !(is_of_op && leaves_gaps(*op_.record.op, tensor)))
    slot_at(slot).hash = hash_of(tensor);
  if (ref.defined()) {
    if (!values_.hold_unwritten(tensor, ref, kMaxUnwrittenBytes))
      return values_.give_up(kUnwritten);
    if (cutter_ && !values_.gave_up())
      cutter_->read_for_slot(slot.number, ref, tensor, values_.is_outside(tensor));
    return;
  }
  const bool is_copy = in_op && !op_.makes_views && op_.written.size() == 1 && has_layout(tensor) &&
                       tensor.scalar_type() == op_.written[0].tensor.scalar_type() &&
                       tensor.sizes() == op_.written[0].tensor.sizes() &&
                       tensor.strides() == op_.written[0].tensor.strides();
  TapeRef before;
  if (is_copy) {
    const uint32_t value = op_.written[0].before;
    before = values_.ref_in(value, op_.written[0].tensor);
  }
  // If the plan does not cover the slot, hold the copy, because the plan does not keep the
  // overwritten value from which the copy could be recomputed.
  const bool is_planned = !cutter_ || cutter_->plans_slot(slot.number, before);
  if (is_copy && is_planned) {
    ref = before;
  } else {
    hold(slot, tensor);
  }
}

// Note [Wrappers on a tape]: a tape records memory, and a tensor subclass with __torch_dispatch__
// has none of its own. So instead of an op on such tensors the tape has the ops on plain tensors
// that the class's handler calls. A slot for a tensor subclass has the parts that
// __tensor_flatten__ names, so a replay runs no Python except the class's __tensor_unflatten__,
// once per slot. On a cut tape at most one part may have been made by a record, because plans count
// a slot as one value.
void SlotRecorder::begin_handled(const OpCall& call) {
  drop_handled();
  in_handled_ = true;
  for (const OpTensor& entry : call.tensors()) {
    if (call.writes_argument(entry.argument)) handled_writes_.push_back(*entry.tensor);
  }
}

void SlotRecorder::end_handled() {
  const std::vector<PendingSlot> pending = std::exchange(handled_pending_, {});
  drop_handled();
  for (const PendingSlot& entry : pending) fill_wrapper(entry.slot, entry.tensor);
}

void SlotRecorder::drop_handled() {
  in_handled_ = false;
  handled_writes_.clear();
  handled_pending_.clear();
}

// If the op writes the wrapper, fills the slot after the op, because autograd saves the new value.
void SlotRecorder::add_wrapper(const at::Tensor& wrapper) {
  const NewSlot slot = new_slot();
  const bool is_written =
      std::any_of(handled_writes_.begin(), handled_writes_.end(),
                  [&](const at::Tensor& written) { return written.is_same(wrapper); });
  if (is_written) {
    handled_pending_.push_back({slot, wrapper});
  } else {
    fill_wrapper(slot, wrapper);
  }
}

void SlotRecorder::fill_wrapper(const NewSlot& slot, const at::Tensor& wrapper) {
  if (values_.gave_up()) return;
  TapeSlot filled = take_apart(wrapper);
  if (values_.gave_up()) return;
  slot_at(slot) = std::move(filled);
  if (cutter_) cut_wrapper(slot, wrapper);
}

void SlotRecorder::cut_wrapper(const NewSlot& slot, const at::Tensor& wrapper) {
  if (slot.part != part_number())
    return values_.give_up(
        "a tensor of a Python class of its own that is saved as an op writes it, and a cut in that "
        "op");
  const at::Tensor made = part_made(wrapper);
  if (values_.gave_up()) return;
  if (!made.defined()) {
    cutter_->plans_slot(slot.number, {});
    return;
  }
  TapeRef& ref = slot_at(slot).ref;
  ref = values_.ref_of(made);
  cutter_->read_for_slot(slot.number, ref, made, values_.is_outside(made));
}

/// The plain inner tensor that a record has made; undefined if there is none. Gives up if there are
/// several, since plans count a slot as one value.
at::Tensor SlotRecorder::part_made(const at::Tensor& wrapper) {
  at::Tensor made;
  for (const at::Tensor& part : inner_tensors(wrapper)) {
    if (is_of_python_class(part)) continue;
    const TapeRef ref = values_.ref_of(part);
    if (!ref.defined() || tape_.values_[ref.value].source != TapeValue::Source::kRecord) continue;
    if (made.defined() && ref.value != values_.ref_of(made).value) {
      values_.give_up(
          "a tensor of a Python class of its own of several tensors that the function makes, on a "
          "tape that is cut");
      return {};
    }
    made = part;
  }
  return made;
}

/// Returns an empty slot if recording was given up.
TapeSlot SlotRecorder::take_apart(const at::Tensor& wrapper) {
  std::optional<FlattenedTensor> flat = flattened(wrapper);
  if (!flat) {
    values_.give_up("a tensor of a Python class of its own without __tensor_flatten__");
    return {};
  }
  TapeSlot::Special special{.held = nullptr, .unflatten = std::move(flat->unflatten), .parts = {}};
  for (const at::Tensor& part : flat->parts) {
    special.parts.push_back(part_of_wrapper(part));
    if (values_.gave_up()) return {};
  }
  return {.ref = {}, .special = std::make_shared<const TapeSlot::Special>(std::move(special))};
}

TapeSlot SlotRecorder::part_of_wrapper(const at::Tensor& part) {
  if (is_of_python_class(part)) return take_apart(part);
  TapeSlot slot;
  slot.ref = values_.ref_of(part);
  if (values_.gave_up()) return slot;
  if (!slot.ref.defined()) {
    values_.give_up(
        "a tensor in one of a Python class of its own that no op of the function has made");
  } else if (!values_.hold_unwritten(part, slot.ref, kMaxUnwrittenBytes)) {
    values_.give_up(kUnwritten);
  } else if (tape_.has_hashes_ && !values_.is_outside(part)) {
    slot.hash = hash_of(part);
  }
  return slot;
}

void SlotRecorder::finish() {
  for (const auto& [slot, tensor, original] : held_) {
    tape_.held_slots_.push_back({tape_.parts_.size() > 1
                                     ? c10::str("slot ", slot.index, " of part ", slot.part)
                                     : c10::str("slot ", slot.index),
                                 TensorMeta(tensor), HeldStorage(tensor)});
    slot_at(slot).special = std::make_shared<const TapeSlot::Special>(TapeSlot::Special{
        .held = std::make_shared<const torch::autograd::SavedVariable>(tensor, /*is_output=*/false),
        .unflatten = {},
        .parts = {}});
  }
  held_.clear();
}

}  // namespace remat
