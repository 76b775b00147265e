// SPDX-License-Identifier: BSD-3-Clause

// The slots of a tape that is being recorded.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <remat/engine/first_position.h>
#include <remat/engine/generator_state.h>
#include <remat/engine/op_call.h>
#include <remat/engine/storage_table.h>
#include <remat/policy/policy.h>
#include <remat/tape/tape.h>
#include <remat/tape/tape_cutter.h>
#include <remat/tape/value_recorder.h>

namespace remat {

/// The running op or, between two ops, the last one, and what its record is made from.
struct RecordedOp {
  struct Write {
    at::Tensor tensor;
    uint32_t before;
    const void* memory;
    Origin origin;
  };

  bool runs = false;
  bool has_run = false;  ///< The op has run; its results are being recorded.
  bool makes_views = false;
  std::optional<Policy> save_next;  ///< Policy with which the op's results are to be kept.
  TapeRecord record{};
  c10::SmallVector<TapeRef, 8> given;  ///< The op's tensor arguments.
  FirstPosition<const c10::TensorImpl*> given_tensors;
  c10::SmallVector<Write, 2> written;
  FirstPosition<uint32_t> written_values;
  std::vector<GeneratorState> states;  ///< Generator states before the op.
};

/// Finds the tape's value for each slot.
class SlotRecorder {
 public:
  SlotRecorder(Tape& tape, ValueRecorder& values, const RecordedOp& op)
      : tape_(tape), values_(values), op_(op) {}
  SlotRecorder(const SlotRecorder&) = delete;
  SlotRecorder& operator=(const SlotRecorder&) = delete;

  /// From now on `cutter` cuts the tape. The cutter must live until this recorder's last call.
  void cut(TapeCutter& cutter) { cutter_ = &cutter; }

  /// Adds the next slot of the region (on a cut tape: of the open segment), which is for `tensor`.
  void add(const at::Tensor& tensor);
  /// Adds the next slot, which is for `copy`, a copy of `original` or of its whole storage. If
  /// `after_op`, the copy has the bytes that the running op leaves; else the bytes from before it.
  void add_copy(const at::Tensor& copy, const at::Tensor& original, bool after_op);
  /// Call it when the recorded op has run. Fills the slots that the op has added.
  void end_op();

  /// begin_handled(): an op on tensor subclasses is about to run; the tape gets the ops that its
  /// handler calls instead. end_handled(): the op has run. drop_handled(): the op has thrown.
  void begin_handled(const OpCall& call);
  void end_handled();
  void drop_handled();
  bool in_handled() const { return in_handled_; }

  /// Number of slots, over all segments of a cut tape.
  size_t count() const { return count_; }

  /// Call it when the function has returned. Gives the tape the tensors of slots that no record
  /// fills.
  void finish();

 private:
  struct NewSlot {
    size_t part;    // The tape part that was open.
    size_t index;   // Index in the part.
    size_t number;  // Number over all segments of a cut tape.
  };
  struct PendingSlot {
    NewSlot slot;
    at::Tensor tensor;
    at::Tensor original{};  // Undefined if `tensor` is no copy.
  };
  size_t part_number() const { return cutter_ ? cutter_->unit() : 0; }
  TapeSlot& slot_at(const NewSlot& slot) { return tape_.parts_[slot.part].slots[slot.index]; }
  NewSlot new_slot();
  bool drop_if_gave_up();
  TapeRef given_ref(const at::Tensor& tensor) const;
  bool is_of_last_record(uint32_t value) const;
  void resolve(const NewSlot& slot, const at::Tensor& tensor, TapeRef found, bool in_op);
  void resolve_copy(const NewSlot& slot, const at::Tensor& copy, const at::Tensor& original);
  void hold(const NewSlot& slot, const at::Tensor& tensor);
  void add_wrapper(const at::Tensor& wrapper);
  void fill_wrapper(const NewSlot& slot, const at::Tensor& wrapper);
  void cut_wrapper(const NewSlot& slot, const at::Tensor& wrapper);
  at::Tensor part_made(const at::Tensor& wrapper);
  TapeSlot take_apart(const at::Tensor& wrapper);
  TapeSlot part_of_wrapper(const at::Tensor& part);

  Tape& tape_;
  ValueRecorder& values_;
  const RecordedOp& op_;
  TapeCutter* cutter_ = nullptr;  // Null if the tape is not cut.
  size_t count_ = 0;
  std::vector<PendingSlot> pending_;  // Slots of the running op, filled by end_op().
  std::vector<PendingSlot> held_;
  // For the running op on tensor subclasses:
  bool in_handled_ = false;
  std::vector<at::Tensor> handled_writes_;  // Arguments that the op writes.
  std::vector<PendingSlot> handled_pending_;
};

}  // namespace remat
