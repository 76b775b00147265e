// SPDX-License-Identifier: BSD-3-Clause

// Recording writes, and memory that nobody has written yet.
#include <utility>

#include <remat/tape/tensor_layout.h>

#include "storage_bytes.h"
#include "tape_recorder.h"

namespace remat {

/// Makes `ref` memory of the open segment, if another one has made it.
void TapeRecorder::make_memory_here(const at::Tensor& tensor, TapeRef& ref) {
  if (!cutter_ || !cutter_->is_of_other_segment(ref.value)) return;
  const uint32_t value = add_memory(tensor, ref.value);
  cutter_->made_memory(value, ref.value);
  ref = ref_of(tensor);
}

uint32_t TapeRecorder::add_memory(const at::Tensor& tensor, uint32_t original) {
  tape_.memories_.push_back({tensor.storage().nbytes(), tensor.device(), original});
  const uint32_t value = add_value(TapeValue::Source::kMemory, tape_.memories_.size() - 1);
  tape_.values_[value].is_uninitialised = true;
  enter(tensor, value);
  return value;
}

void TapeRecorder::adopt_memory(const at::Tensor& tensor) {
  if (gave_up() || unsupported(tensor)) return;
  storages_.hold_address(tensor);
  add_memory(tensor);
}

/// If no op has written the memory, makes `ref` a value that the tape holds: LibTorch makes such
/// tensors of host numbers, for an index or a scalar. False if it would hold more than `most`
/// bytes.
bool TapeRecorder::hold_unwritten(const at::Tensor& tensor, TapeRef& ref, size_t most) {
  if (!tape_.values_[ref.value].is_uninitialised || tensor.numel() == 0) return true;
  if (tensor.storage().nbytes() > most) return false;
  enter(tensor, add_held(view_storage(clone_bytes(tensor.storage()).storage(), tensor)));
  ref = ref_of(tensor);
  return true;
}

/// Note [Writes that no op shows]: another thread of the function may write what a record has made,
/// or a custom function may report a write (mark_dirty). Version counters count both. How to
/// recompute the result is unknown, so the tape holds the bytes as they are when they are met
/// again.
uint32_t TapeRecorder::hold_written_unseen(const at::Tensor& tensor) {
  const uint32_t held = add_held(view_storage(clone_bytes(tensor.storage()).storage(), tensor));
  const Origin origin = storages_.find(memory_of(tensor));
  if (origin.is_outside()) {
    outside_values_[origin.number()] = held;
  } else {
    enter(tensor, held);
  }
  note_version(tensor, held);
  return held;
}

void TapeRecorder::note_write(const at::Tensor& tensor, uint32_t value) {
  const void* const memory = memory_of(tensor);
  if (!memory || op_.written_values.contains(value)) return;
  keep_value(tensor, value);
  op_.written_values.add(value);
  op_.written.push_back({tensor, value, memory, storages_.find(memory)});
}

void TapeRecorder::before_saved_write(const at::Tensor& tensor) {
  if (gave_up() || unsupported(tensor) || !memory_of(tensor)) return;
  const uint32_t value = value_of(tensor);
  if (value != TapeValue::kNone) keep_value(tensor, value);
}

/// `tensor`, which has the value, is about to be written: holders of an alias take a copy.
void TapeRecorder::keep_value(const at::Tensor& tensor, uint32_t value) {
  if (cutter_) cutter_->before_write(value, tensor);
  const TapeValue& before = tape_.values_[value];
  if (before.source == TapeValue::Source::kHeld) {
    at::Tensor& held = tape_.held_[before.number];
    if (held.storage().is_alias_of(tensor.storage()))
      held = view_storage(clone_bytes(held.storage()).storage(), held);
  }
}

void TapeRecorder::add_writes(const OpCall& call) {
  for (const Write& write : op_.written) {
    if (memory_of(write.tensor) != write.memory)
      return give_up(call, "an argument that has other memory after the op");
    const uint32_t value = add_value(TapeValue::Source::kRecord, tape_.records_.size());
    if (write.origin.is_outside()) {
      outside_values_[write.origin.number()] = value;
    } else {
      enter(write.tensor, value);
    }
    note_version(write.tensor, value);
    tape_.writes_.push_back({write.before, value});
    note_made(size_t{op_.record.output_count} + op_.record.write_count++, value, write.tensor);
  }
}

}  // namespace remat
