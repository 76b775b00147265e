// SPDX-License-Identifier: BSD-3-Clause

// Recording a tape while a region's forward runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <remat/tape/first_position.h>
#include <remat/tape/generator_state.h>
#include <remat/tape/op_call.h>
#include <remat/tape/outside_log.h>
#include <remat/tape/region.h>
#include <remat/tape/segment_policies.h>
#include <remat/tape/storage_table.h>
#include <remat/tape/tape.h>

#include "tape_cutter.h"

namespace remat {

/// A ForwardScope reports each op, unobserved results and slots to it. Gives up for good at what a
/// tape cannot replay: Tape::failure() has the reason.
class TapeRecorder final : public SegmentPolicies {
 public:
  struct Options {
    TrustedOps trusted{};                                    ///< See Note [Trusting a tape].
    const std::vector<at::Generator>* generators = nullptr;  ///< Beyond the default ones; null:
                                                             ///< restores none.
    std::string strict_label{};  ///< The region's label, if giving up is an error.
  };
  TapeRecorder(Tape& tape, StorageTable& storages, Options options)
      : tape_(tape), storages_(storages), options_(std::move(options)) {
    tape_.has_hashes_ = options_.trusted.empty();
  }
  TapeRecorder(const TapeRecorder&) = delete;
  TapeRecorder& operator=(const TapeRecorder&) = delete;

  /// Has `cutter` cut the tape. Call it once, before the first op.
  void cut(std::unique_ptr<TapeCutter> cutter) { cutter_ = std::move(cutter); }
  /// Null if the tape is not cut.
  const TapeCutter* cutter() const { return cutter_.get(); }

  // On a cut tape: a segment may begin with the op that is about to run.
  const RegionPolicy* enter() override {
    enter_segment();
    return cutter_->policy();
  }
  void save_next(Policy policy) override { op_.save_next = policy; }
  void save_results(const OpCall& call, Policy policy) override;

  /// True while a reported op runs.
  bool in_op() const { return op_.runs; }
  /// True while it processes the results of an op.
  bool op_has_run() const { return op_.has_run; }

  bool gave_up() const { return !tape_.failure_.empty(); }
  /// True if giving up is an error.
  bool is_strict() const { return !options_.strict_label.empty(); }
  /// `what` names the obstacle: "op aten::resize_: memory that changes its size". Throws
  /// NotImplementedError if the region has no other way to be replayed.
  void give_up(const std::string& what);

  /// A dispatch mode that the function has opened handles the op that is about to run, and may
  /// compute something else: see Note [Trusting a tape].
  void note_mode();
  /// The op is about to run under other settings than the region began with.
  void note_settings(const OpCall& call);
  /// The op is about to run on another stream or device than the region began with.
  void note_streams(const OpCall& call);
  /// Call before_op() after the scope has entered all arguments in its table.
  void before_op(const OpCall& call);
  void after_op(const OpCall& call);

  /// Like before_op() and after_op(), for an op on tensor subclasses, which is replaced by the ops
  /// that its handler calls.
  void begin_handled(const OpCall& call);
  void end_handled();
  /// The handled op has thrown.
  void drop_handled() { handled_ = {}; }

  /// An op of a SAVE call is about to write `tensor`.
  void before_saved_write(const at::Tensor& tensor);

  /// Unobserved code inside has made `tensor`: the tape holds it.
  void adopt(const at::Tensor& tensor);

  /// Like adopt(), for memory that nobody has written: the op that is about to run overwrites it.
  void adopt_memory(const at::Tensor& tensor);

  /// set_outside(): a SAVE call has written the outside storage. reset_outside(): its value is the
  /// one kept from before the region's writes.
  void set_outside(size_t number, size_t product);
  void reset_outside(size_t number);

  /// The next slot of the region, or of the open segment, is for `tensor`.
  void add_slot(const at::Tensor& tensor);
  /// The next slot is for `copy`, a copy of all bytes in the storage of `original`, as they are now
  /// or, if `after_op`, after the running op.
  void add_copy_slot(const at::Tensor& copy, const at::Tensor& original, bool after_op);

  /// Call it when the function has returned. Drops what no slot needs, and keeps needed tensors
  /// from outside; others hold the arguments. Call it where remat's own tensors are kept: see
  /// OuterScopes.
  void finish(OutsideLog& outside);

 private:
  struct Write {
    at::Tensor tensor;
    uint32_t before;
    const void* memory;
    Origin origin;
  };

  /// The version that a record has left, as LibTorch counts writes.
  struct Version {
    c10::VariableVersion counter{c10::VariableVersion::DISABLED};
    uint32_t left = 0;
  };

  struct NewSlot {
    size_t part;    // The part that was open.
    size_t index;   // Index in the part.
    size_t number;  // Number over all segments of a cut tape.
  };

  static constexpr size_t kMostBytes = 4096;
  static constexpr size_t kMostBytesOfPart = size_t{4}
                                             << 20;  // For an op that writes parts (x[i] = y).
  static constexpr const char* kUnwrittenPart =
      "more than 4 MiB that no op wrote, after empty(), of which it writes parts";
  static constexpr const char* kUnwritten = "more than 4,096 bytes that no op wrote, after empty()";

  void enter_segment() {
    const size_t number = tape_.records().size();
    if (!gave_up() && !op_.runs && cutter_->begins(number)) cutter_->enter_next(number);
  }
  static const char* unsupported(const at::Tensor& tensor);
  void add_wrapper_slot(const at::Tensor& wrapper);
  void fill_wrapper_slot(const NewSlot& slot, const at::Tensor& wrapper);
  void cut_wrapper_slot(const NewSlot& slot, const at::Tensor& wrapper);
  at::Tensor part_made(const at::Tensor& wrapper);
  std::shared_ptr<const TapeWrapper> take_apart(const at::Tensor& wrapper);
  TapeSlot part_of_wrapper(const at::Tensor& part);
  void give_up(const OpCall& call, const char* what);
  /// Throws if giving up is an error.
  void refuse_if_strict() const;
  bool is_new(const void* memory) const;
  TapeRef ref_of(const at::Tensor& tensor);  // Undefined if it is unsupported.
  uint32_t value_of(const at::Tensor& tensor);
  uint32_t last_value_of(const at::Tensor& tensor);
  uint32_t add_value(TapeValue::Source source, size_t number);
  uint32_t add_held(const at::Tensor& tensor);
  uint32_t layout_of(const at::Tensor& tensor, TapeValue& value);
  void enter(const at::Tensor& tensor, uint32_t value);
  void note_version(const at::Tensor& tensor, uint32_t value);
  bool is_written_unseen(uint32_t value) const;
  uint32_t hold_written_unseen(const at::Tensor& tensor);
  void add_argument(const OpCall& call, size_t i);
  void add_ref(const OpCall& call, size_t i, const at::Tensor& tensor);
  void make_memory_here(const at::Tensor& tensor, TapeRef& ref);
  uint32_t add_memory(const at::Tensor& tensor, uint32_t original = TapeValue::kNone);
  bool hold_unwritten(const at::Tensor& tensor, TapeRef& ref, size_t most);
  void note_write(const at::Tensor& tensor, uint32_t value);
  void keep_value(const at::Tensor& tensor, uint32_t value);
  void add_made(const OpCall& call);
  void add_results(const OpCall& call);
  void add_output(const OpCall& call, const at::Tensor& tensor, size_t result, size_t element);
  void adopt_parts(const at::Tensor& wrapper);
  void add_writes(const OpCall& call);
  void note_made(size_t result, uint32_t value, const at::Tensor& tensor);
  void end_record();
  void drop_record();
  size_t part_number() const { return cutter_ ? cutter_->unit() : 0; }
  TapePart& part() { return tape_.parts_[part_number()]; }
  TapeRef given_ref(const at::Tensor& tensor) const;
  bool is_of_last_record(uint32_t value) const;
  NewSlot new_slot();
  void resolve_pending();
  bool is_outside(const at::Tensor& tensor) const;
  void save_value(const at::Tensor& tensor, Policy policy);
  void resolve_copy(const NewSlot& slot, const at::Tensor& copy, const at::Tensor& original);
  void resolve(const NewSlot& slot, const at::Tensor& tensor, TapeRef found, bool in_op);
  void hold_slot(const NewSlot& slot, const at::Tensor& tensor);
  std::vector<bool> needed_values() const;
  void drop_tail(const std::vector<bool>& needed);
  void drop_held(const std::vector<bool>& needed);
  void hold_outside(OutsideLog& outside, const std::vector<bool>& needed);
  static void hold_whole(Tape::Outside& outside, const at::Tensor& tensor);
  void hold_slots();

  Tape& tape_;
  StorageTable& storages_;
  std::vector<at::Tensor> outside_tensors_;  // By number; undefined if no op read it.
  std::vector<uint32_t> outside_values_;     // By number; the present value.
  std::vector<uint32_t> product_values_;
  std::vector<Version> versions_;  // By value: the version that its record has left.
  Options options_;
  std::unique_ptr<TapeCutter> cutter_;
  uint32_t last_layout_ = TapeValue::kNone;
  struct PendingSlot {
    NewSlot slot;
    at::Tensor tensor;
    at::Tensor original;  // Undefined if `tensor` is no copy.
  };
  struct Op {
    bool runs = false;
    bool has_run = false;
    bool makes_views = false;
    std::optional<Policy> save_next;
    TapeRecord record{};
    c10::SmallVector<TapeRef, 8> given;  // Arguments.
    FirstPosition<const c10::TensorImpl*> given_tensors;
    c10::SmallVector<Write, 2> written;
    FirstPosition<uint32_t> written_values;
    std::vector<GeneratorState> states;  // Before the op.
    c10::SmallVector<PendingSlot, 4> pending;
  };
  Op op_;  // The running op.
  struct Handled {
    bool runs = false;
    std::vector<at::Tensor> written;  // Arguments.
    std::vector<std::pair<NewSlot, at::Tensor>> pending;
  };
  Handled handled_;  // The running handled op.
  struct HeldSlot {
    size_t part;
    size_t slot;
    at::Tensor tensor;
  };
  std::vector<HeldSlot> held_slots_;
};

}  // namespace remat
