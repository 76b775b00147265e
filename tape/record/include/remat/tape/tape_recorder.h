// SPDX-License-Identifier: BSD-3-Clause

// Recording a tape while a region's forward runs.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/op_call.h>
#include <remat/engine/outside_log.h>
#include <remat/engine/region_run.h>
#include <remat/engine/storage_table.h>
#include <remat/policy/policy.h>
#include <remat/tape/slot_recorder.h>
#include <remat/tape/tape.h>
#include <remat/tape/tape_cutter.h>
#include <remat/tape/tape_trust.h>
#include <remat/tape/value_recorder.h>

namespace remat {

/// Writes a record for each op that a ForwardScope reports.
class TapeRecorder final : public SegmentPolicies {
 public:
  /// `trusted`: see Note [Trusting a tape]. `generators`: those that the region's options name, in
  /// addition to the default ones; null if replays restore no generator. `strict_label`: the
  /// region's label if giving up is an error; else empty.
  TapeRecorder(Tape& tape, StorageTable& storages, TrustedOps trusted,
               const std::vector<at::Generator>* generators, std::string strict_label)
      : tape_(tape),
        storages_(storages),
        values_(tape, storages, std::move(strict_label)),
        trusted_(std::move(trusted)),
        generators_(generators) {
    tape_.has_hashes_ = trusted_.empty();
  }

  /// Has `cutter` cut the tape. Call it once, before the first op.
  void cut(std::unique_ptr<TapeCutter> cutter);
  /// Null if the tape is not cut.
  const TapeCutter* cutter() const { return cutter_.get(); }

  ValueRecorder& values() { return values_; }
  SlotRecorder& slots() { return slots_; }
  bool gave_up() const { return values_.gave_up(); }
  void give_up(const std::string& what) { values_.give_up(what); }

  // Call it before an op on a cut tape, because a segment may begin with that op.
  const RegionPolicy* enter(const OpInfo& next) override {
    enter_segment(next);
    return cutter_->policy();
  }
  void save_next(Policy policy) override { op_.save_next = policy; }
  void save_results(const OpCall& call, Policy policy) override;

  /// True while an op that before_op() reported runs.
  bool in_op() const { return op_.runs && !gave_up(); }
  /// True while after_op() records the results of an op.
  bool op_has_run() const { return op_.has_run; }

  /// Notes that a dispatch mode which the function has opened handles the next op, and may compute
  /// something else: see Note [Trusting a tape].
  void note_mode();
  /// Gives up, because the next op runs under other settings than the region began with.
  void note_settings(const OpCall& call);
  /// Gives up, because the next op runs on another stream or device than the region began with.
  void note_streams(const OpCall& call);
  /// Call before_op() after the scope has entered all arguments in its table.
  void before_op(const OpCall& call);
  void after_op(const OpCall& call);
  /// Like before_op(), for an op on tensor subclasses: see SlotRecorder::begin_handled().
  void begin_handled(const OpCall& call);

  /// Call it before an op of a SAVE call writes `tensor`.
  void before_saved_write(const at::Tensor& tensor);

  /// Call it when the function has returned, under HiddenScopes, so that the scopes around the
  /// region keep what the tape saves. Drops values that no slot needs, and keeps needed tensors
  /// from outside, except arguments, which the RegionEntry holds.
  void finish(OutsideLog& outside);

 private:
  void enter_segment(const OpInfo& next);
  void add_argument(const OpCall& call, size_t i);
  void add_ref(const OpCall& call, size_t i, const at::Tensor& tensor);
  void make_memory_here(const at::Tensor& tensor, TapeRef& ref);
  void note_write(const at::Tensor& tensor, uint32_t value);
  void keep_value(const at::Tensor& tensor, uint32_t value);
  void add_made(const OpCall& call);
  void add_results(const OpCall& call);
  void add_output(const OpCall& call, const at::Tensor& tensor, size_t result, size_t element);
  void add_writes(const OpCall& call);
  void note_made(size_t result, uint32_t value, const at::Tensor& tensor);
  void save_value(const at::Tensor& tensor, Policy policy);
  void end_record();
  void drop_record();
  std::vector<bool> needed_values() const;
  void drop_tail(const std::vector<bool>& needed);

  Tape& tape_;
  StorageTable& storages_;
  ValueRecorder values_;
  RecordedOp op_;
  SlotRecorder slots_{tape_, values_, op_};
  std::unique_ptr<TapeCutter> cutter_;
  TrustedOps trusted_;
  const std::vector<at::Generator>* const generators_;
};

}  // namespace remat
