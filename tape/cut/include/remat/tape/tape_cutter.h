// SPDX-License-Identifier: BSD-3-Clause

// Cutting a tape while it is recorded.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <remat/engine/expected_tape.h>
#include <remat/engine/op_call.h>
#include <remat/engine/planned_cuts.h>
#include <remat/engine/region.h>
#include <remat/policy/policy.h>
#include <remat/tape/cut_units.h>
#include <remat/tape/cut_values.h>
#include <remat/tape/rest_memory.h>
#include <remat/tape/tape.h>
#include <remat/tape/tape_comparison.h>
#include <remat/tape/tape_replayer.h>

namespace remat {

/// Assigns each slot to its segment's region. A value that crosses a cut is kept or gets a slot of
/// a group.
///
/// Note [What crosses a cut]: when an op reads a value that another segment made, the forward keeps
/// the tensor or, if a group contains both segments, adds a slot for the value to the smallest such
/// group. The inputs of a unit U directly inside the root are found when U and the next such unit
/// have ended, because by then all slots of U are known, and so are the values of U that the next
/// unit keeps. Each segment and group in U then holds its inputs, and other values of U are given
/// up. If a unit after these two reads a value of U, the forward keeps the value, and when the
/// function has returned, U uses the value as an input, too, and does not recompute it.
///
/// Note [A tape that differs from its plan]: cuts that were made for another tape are valid up to
/// the first difference. Slots and records before the difference are as planned, so Cuts::keep
/// lists the inputs of their units. Records after the difference belong to the open segment. The
/// forward keeps all that this segment saves after the difference, so no replay runs these records.
/// The rest of the tape begins at the first cut after the difference (Note [Where the rest is
/// cut]). Segments of the rest are in no group, and all their inputs are kept. A planned unit may
/// need values that a later planned unit would have kept if that unit had come. Such a unit begins
/// at the start of the tape and recomputes the missing values.
class TapeCutter {
 public:
  /// `root` is the user's region, which has the logs; `whole` replays the whole tape.
  TapeCutter(Tape& tape, const PlannedCuts& cuts, std::shared_ptr<Region> root,
             std::shared_ptr<const TapeReplayer> whole, CutValues::Keep keep);
  TapeCutter(const TapeCutter&) = delete;
  TapeCutter& operator=(const TapeCutter&) = delete;

  /// The region of the open segment.
  const std::shared_ptr<Region>& region() const { return units_.region(unit()); }
  const RegionPolicy* policy() const { return region()->policy(); }
  /// Number of the open segment among the tape's parts.
  size_t unit() const { return units_.tree().unit_of(segment_); }

  /// True if a segment begins with record `number`, the next one. If so, call enter_next().
  bool begins(size_t number) {
    if (C10_UNLIKELY(next_cut_ == NextCut::kLook)) look_for_cut();
    return next_cut_ == NextCut::kHere ||
           (segment_ < positions_.size() && positions_[segment_] == number);
  }
  void enter_next(size_t number);

  /// begin_op(): an op is about to run; it may make a record. end_record(): the op has made the
  /// tape's last record.
  void begin_op(const OpInfo& op) {
    if (!comparison_ || phase_ != Phase::kPlan) return;
    comparison_->begin_op(op);
    rest_.forget_planned();
  }
  void end_record() {
    if (comparison_) compare_record();
    if (cuts_now_) count_record();
    if (listed_.has_made()) keep_listed();
  }

  /// Notes that the open segment allocates memory with `value` in place of the memory of
  /// `original`.
  void made_memory(uint32_t value, uint32_t original) {
    if (comparison_) comparison_->add_memory(value, original);
  }
  /// Notes that an op has allocated `storage` for `value`.
  void allocated(uint32_t value, const c10::Storage& storage) {
    if (comparison_ || cuts_now_) rest_.allocated(value, storage);
  }

  /// Reports that slot `number` has `ref` or, if `ref` is undefined, a tensor that the tape holds.
  /// Returns false if the plan does not cover the slot, so that the forward must keep its tensor.
  bool plans_slot(size_t number, const TapeRef& ref);

  /// True if a segment other than the open one has made the value.
  bool is_of_other_segment(uint32_t value) const;

  /// Notes that record `record` has just made `ref` as its result `result` (see Cuts::Kept).
  void made(size_t record, size_t result, const TapeRef& ref, const at::Tensor& tensor,
            bool is_outside) {
    if (phase_ == Phase::kPlan) listed_.note_made(record, result, ref, tensor, is_outside);
  }

  /// Note that an op (read()) or a slot (read_for_slot()) of the open segment reads the value.
  void read(const TapeRef& ref, const at::Tensor& tensor, bool is_outside);
  void read_for_slot(size_t slot, const TapeRef& ref, const at::Tensor& tensor, bool is_outside);

  /// Notes that a rule gives SAVE or OFFLOAD to the op that has just made the value.
  void save(const TapeRef& ref, const at::Tensor& tensor, bool is_outside, Policy policy);

  /// Notes that an op like t_() has given `tensor` a new version, but has written no data.
  void laid_out_anew(uint32_t value, const at::Tensor& tensor) {
    kept_.laid_out_anew(value, tensor);
  }

  /// Call it before a write to the value's memory.
  void before_write(uint32_t value, const at::Tensor& tensor);

  /// Call it when the function has returned, after `records` records and `slots` slots.
  void finish(size_t records, size_t slots);

  /// Indexed by value: true if some replay reads or makes the value.
  const std::vector<bool>& needed() const { return units_.needed(); }

 private:
  enum class Phase : uint8_t {
    kPlan,
    kDiffers,  // The open segment continues with different records.
    kRest,
  };
  enum class NextCut : uint8_t {
    kPlanned,
    kLook,  // Look for a cut before the next op.
    kHere,  // The next record begins a segment that was not planned.
  };

  void keep_listed();
  void compare_record();
  void count_record();
  void compare_end(size_t slots);
  void compare_dropped_slots();
  void look_for_cut();
  std::unordered_map<uint32_t, size_t> bytes_saved() const;
  void differ(const TapeDifference& difference);
  void add_segment(size_t number);
  void open_segment();
  void end_unit(size_t top);
  void close_ended();
  size_t segment_of(uint32_t record) const;
  size_t maker(uint32_t value) const { return segment_of(tape_.values()[value].number); }
  void cross(const TapeRef& ref, const at::Tensor& tensor, bool is_outside, Policy policy);
  void keep(uint32_t value, const at::Tensor& tensor, bool is_outside, Policy policy);
  bool may_cross(uint32_t value) const;
  void check_positions(size_t records) const;

  const Tape& tape_;
  CutValues kept_;
  CutUnits units_;
  ListedValues listed_;
  std::vector<size_t> positions_;
  std::optional<TapeComparison> comparison_;
  RestMemory rest_;
  const bool cuts_now_;        // PlannedCuts::while_recorded
  size_t crossing_bytes_ = 0;  // With cuts_now_: bytes of the group's slots.
  Phase phase_ = Phase::kPlan;
  NextCut next_cut_ = NextCut::kPlanned;
  size_t segment_ = 0;
  std::optional<size_t> ended_;  // Ended unit directly inside the root, yet to be closed.
};

}  // namespace remat
