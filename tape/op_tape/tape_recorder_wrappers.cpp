// SPDX-License-Identifier: BSD-3-Clause

// Tensor subclasses on a tape.
#include <remat/tape/flattened_tensor.h>
#include <remat/tape/held_storage.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "tape_recorder.h"
#include "tensor_hash.h"

namespace remat {

// Note [Wrappers on a tape]: a tape records memory, and a tensor subclass with __torch_dispatch__
// has none of its own. So instead of an op on such tensors the tape has the ops on plain tensors
// that the class's handler calls. A slot for one has the parts that __tensor_flatten__ names: a
// replay runs no Python except the class's __tensor_unflatten__, once per slot. A cut tape counts
// the part that a record has made, which may be one at most; the other parts exist already.
void TapeRecorder::begin_handled(const OpCall& call) {
  if (gave_up()) return;
  if (op_.runs) return give_up("an op that threw, after which the function went on");
  if (cutter_) enter_segment();
  handled_ = {};
  handled_.runs = true;
  for (const OpTensor& entry : call.tensors()) {
    if (call.writes_argument(entry.argument)) handled_.written.push_back(*entry.tensor);
  }
}

void TapeRecorder::end_handled() {
  const Handled handled = std::exchange(handled_, {});
  for (const auto& [slot, wrapper] : handled.pending) fill_wrapper_slot(slot, wrapper);
}

// A tensor that the op writes is saved as it is after the op.
void TapeRecorder::add_wrapper_slot(const at::Tensor& wrapper) {
  const NewSlot slot = new_slot();
  const bool is_written =
      std::any_of(handled_.written.begin(), handled_.written.end(),
                  [&](const at::Tensor& written) { return written.is_same(wrapper); });
  if (is_written) {
    handled_.pending.emplace_back(slot, wrapper);
  } else {
    fill_wrapper_slot(slot, wrapper);
  }
}

void TapeRecorder::fill_wrapper_slot(const NewSlot& slot, const at::Tensor& wrapper) {
  if (gave_up()) return;
  auto parts = take_apart(wrapper);
  if (gave_up()) return;
  tape_.parts_[slot.part].slots[slot.index].wrapper = std::move(parts);
  if (cutter_) cut_wrapper_slot(slot, wrapper);
}

void TapeRecorder::cut_wrapper_slot(const NewSlot& slot, const at::Tensor& wrapper) {
  if (slot.part != part_number())
    return give_up(
        "a tensor of a Python class of its own that is saved as an op writes it, and a cut in that "
        "op");
  const at::Tensor made = part_made(wrapper);
  if (gave_up()) return;
  if (!made.defined()) {
    cutter_->plans_slot(slot.number, {});
    return;
  }
  TapeRef& ref = part().slots[slot.index].ref;
  ref = ref_of(made);
  cutter_->read_for_slot(slot.number, ref, made, is_outside(made));
}

/// The inner plain tensor that a record has made; undefined if there is none. Plans count a slot as
/// one value.
at::Tensor TapeRecorder::part_made(const at::Tensor& wrapper) {
  at::Tensor made;
  for (const at::Tensor& part : inner_tensors(wrapper)) {
    if (is_of_python_class(part)) continue;
    const TapeRef ref = ref_of(part);
    if (!ref.defined() || tape_.values_[ref.value].source != TapeValue::Source::kRecord) continue;
    if (made.defined() && ref.value != ref_of(made).value) {
      give_up(
          "a tensor of a Python class of its own of several tensors that the function makes, on a "
          "tape that is cut");
      return {};
    }
    made = part;
  }
  return made;
}

/// Null if it has given up.
std::shared_ptr<const TapeWrapper> TapeRecorder::take_apart(const at::Tensor& wrapper) {
  std::optional<FlattenedTensor> flat = flattened(wrapper);
  if (!flat) {
    give_up("a tensor of a Python class of its own without __tensor_flatten__");
    return nullptr;
  }
  auto taken = std::make_shared<TapeWrapper>();
  taken->unflatten = std::move(flat->unflatten);
  for (const at::Tensor& part : flat->parts) {
    taken->parts.push_back(part_of_wrapper(part));
    if (gave_up()) return nullptr;
  }
  return taken;
}

TapeSlot TapeRecorder::part_of_wrapper(const at::Tensor& part) {
  TapeSlot slot;
  if (is_of_python_class(part)) {
    slot.wrapper = take_apart(part);
    return slot;
  }
  slot.ref = ref_of(part);
  if (gave_up()) return slot;
  if (!slot.ref.defined()) {
    give_up("a tensor in one of a Python class of its own that no op of the function has made");
  } else if (!hold_unwritten(part, slot.ref, kMostBytes)) {
    give_up(kUnwritten);
  } else if (tape_.has_hashes_ && !is_outside(part)) {
    slot.hash = hash_of(part);
  }
  return slot;
}

/// Adopts the parts of a tensor subclass that an op on plain tensors has made, such as the op that
/// wraps a collective's result.
void TapeRecorder::adopt_parts(const at::Tensor& wrapper) {
  for (const at::Tensor& part : inner_tensors(wrapper)) adopt(part);
}

}  // namespace remat
