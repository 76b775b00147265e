// SPDX-License-Identifier: BSD-3-Clause

// Cutting a tape while it is recorded.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <remat/policy/policy.h>
#include <remat/tape/cuts.h>
#include <remat/tape/expected_tape.h>
#include <remat/tape/op_call.h>
#include <remat/tape/region.h>
#include <remat/tape/tape.h>
#include <remat/tape/tape_replayer.h>

#include "cut_tree.h"
#include "cut_value.h"
#include "rest_memory.h"
#include "segment_replayer.h"
#include "tape_comparison.h"
#include "unit_inputs.h"

namespace remat {

/// Assigns each slot to the region of its segment, and keeps or marks values that cross the cuts. A
/// large class: its inputs, the open units, and the values kept for them.
///
/// Note [What crosses a cut]: when an op reads a value of another segment, the tensor is at hand.
/// If no group contains both segments, the forward keeps it; else it becomes a slot of that group.
/// When a unit directly inside the root and the next such unit have ended, all slots of the first
/// are known, and so is what the second has kept of it. Then each segment and group of the first
/// takes hold of just its inputs, and the other values are given up. Still later units that read
/// one of its values keep the value themselves. When the function has returned, the first unit uses
/// such a value as an input, too, and does not make it again.
///
/// Note [A tape that differs from its plan]: cuts that were made for another tape are valid up to
/// the first difference. Up to there, slots and records are the planned ones, so the inputs of
/// their units are listed. Different records belong to the open segment: the forward keeps what
/// that segment saves from then on, though no list has it, so no replay runs these records. The
/// rest of the tape begins at its first cut: its segments are outside all groups, and all their
/// inputs are kept: see Note [Where the rest is cut]. One problem remains: a planned unit may rely
/// on values that a later planned unit, which never came, would have kept. Such a unit begins at
/// the start of the tape and recomputes what it misses.
class TapeCutter {
 public:
  /// Keeps the memory of `tensor` for `value` in the scopes around the region; or a copy, if it is
  /// kept there and about to be written.
  using Keep = std::function<void(CallProduct& value, const at::Tensor& tensor, Policy policy)>;

  /// `root` has the log of outside storages and of named calls; `whole` the tape.
  TapeCutter(Tape& tape, const Cuts& cuts, std::shared_ptr<Region> root,
             std::shared_ptr<const TapeReplayer> whole, Keep keep);

  /// The region of the open segment.
  const std::shared_ptr<Region>& region() const { return regions_[unit()]; }
  const RegionPolicy* policy() const { return region()->policy(); }
  /// Number of the open segment among the tape's parts.
  size_t unit() const { return tree_.unit_of(segment_); }

  /// True if a segment begins with record `number`, which is about to be recorded; then call
  /// enter_next().
  bool begins(size_t number) {
    if (C10_UNLIKELY(looks_)) look_for_cut();
    return cuts_next_ || (segment_ < positions_.size() && positions_[segment_] == number);
  }
  void enter_next(size_t number);

  /// begin_op(): an op is about to run, which may make a record. end_record(): it has made the
  /// tape's last record.
  void begin_op(const OpInfo& op) {
    if (!comparison_ || phase_ != Phase::kPlan) return;
    comparison_->begin_op(op);
    rest_.forget_planned();
  }
  void end_record() {
    if (comparison_) compare_record();
    if (cuts_now_) count_record();
    if (!listed_now_.empty()) keep_listed();
  }

  /// The open segment makes memory for itself, in place of `original`.
  void made_memory(uint32_t value, uint32_t original) {
    if (comparison_) comparison_->add_memory(value, original);
  }
  /// An op has allocated `storage` for `value`.
  void allocated(uint32_t value, const c10::Storage& storage) {
    if (comparison_ || cuts_now_) rest_.allocated(value, storage);
  }

  /// Number of the next slot, counted over all segments.
  size_t next_slot() { return slots_++; }
  /// Reports that slot `number` holds `ref`, undefined if the slot holds a tensor itself. False if
  /// the list of crossing values does not cover this slot.
  bool plans_slot(size_t number, const TapeRef& ref);

  /// True if another segment than the open one has made the value.
  bool is_of_other_segment(uint32_t value) const;

  /// A record has just made the value, as result number `result` (see Cuts::Kept).
  void made(size_t record, size_t result, const TapeRef& ref, const at::Tensor& tensor,
            bool is_outside);

  /// read(): an op of the open segment reads the value in `tensor`. read_for_slot(): a slot does.
  void read(const TapeRef& ref, const at::Tensor& tensor, bool is_outside);
  void read_for_slot(size_t slot, const TapeRef& ref, const at::Tensor& tensor, bool is_outside);

  /// A rule gives SAVE or OFFLOAD to the op that has just made the value.
  void save(const TapeRef& ref, const at::Tensor& tensor, bool is_outside, Policy policy);

  /// An op like t_() has given it a new version, but no other values.
  void laid_out_anew(uint32_t value, const at::Tensor& tensor);

  /// The value's memory is about to be written.
  void before_write(uint32_t value, const at::Tensor& tensor);

  /// The function has returned, after `records` records.
  void finish(size_t records);

  /// Indexed by value: true if some replay reads or makes it.
  const std::vector<bool>& needed() const { return needed_; }

 private:
  enum class Phase : uint8_t {
    kPlan,
    kDiffers,  // The open segment continues with different records.
    kRest,
  };
  using CutValues = std::unordered_map<uint32_t, std::shared_ptr<CutValue>>;
  struct GroupSlot {
    size_t slot;
    std::shared_ptr<CutValue> value;  // Null if no unit has asked for it.
  };

  void keep_listed();
  void compare_record();
  void count_record();
  void compare_end();
  void compare_dropped_slots();
  void look_for_cut();
  std::unordered_map<uint32_t, size_t> bytes_saved() const;
  void differ(const TapeDifference& difference);
  void add_segment(size_t number);
  void open_units();
  void end_unit(size_t top);
  void close_ended();
  size_t segment_of(uint32_t record) const;
  size_t maker(uint32_t value) const { return segment_of(tape_.values()[value].number); }
  void cross(const TapeRef& ref, const at::Tensor& tensor, bool is_outside, Policy policy);
  void keep(uint32_t value, const at::Tensor& tensor, bool is_outside, Policy policy);
  std::shared_ptr<CutValue> kept(uint32_t value) const;
  void add_group_slot(const TapeRef& ref, const at::Tensor& tensor, size_t group);
  std::shared_ptr<CutValue> outer_value(uint32_t value, size_t reader);
  UnitInputs::Found search(size_t unit);
  void find_inputs(size_t unit);
  void find_inputs_again();
  template <class Visit>
  void for_each_slot(Visit&& visit);
  size_t live_slots() const;
  void drop_unread_slots(size_t group);
  std::optional<Policy> listed_as(uint32_t value) const {
    return value < listed_as_.size() ? listed_as_[value] : std::nullopt;
  }
  bool may_cross(uint32_t value) const;
  void check_positions(size_t records) const;
  void check_listed(size_t records) const;
  void check_missing() const;

  Tape& tape_;
  CutTree tree_;
  std::vector<size_t> positions_;
  const std::vector<std::shared_ptr<const RegionPolicy>> policies_;
  const std::optional<std::vector<Cuts::Kept>> listed_;
  const std::shared_ptr<Region> root_;
  const std::shared_ptr<const TapeReplayer> whole_;
  const Keep keep_;
  std::optional<TapeComparison> comparison_;
  const std::function<void(const TapeDifference&)> differs_;
  RestMemory rest_;
  const bool cuts_now_;      // Cuts::while_recorded
  size_t crossing_bytes_ = 0;  // With cuts_now_: bytes of the group's slots
  Phase phase_ = Phase::kPlan;
  bool cuts_next_ = false;  // The next record begins a segment that was not planned.
  bool looks_ = false;      // Look for a cut before the next op.
  size_t slots_ = 0;
  size_t segment_ = 0;
  size_t next_listed_ = 0;
  std::vector<std::optional<Policy>> listed_as_;  // By value.
  struct Listed {
    TapeRef ref;
    at::Tensor tensor;
    bool is_outside;
    Policy policy;
  };
  c10::SmallVector<Listed, 2> listed_now_;  // Made by the current record.
  // By unit, until the function has returned.
  std::vector<std::shared_ptr<Region>> regions_;
  std::vector<std::shared_ptr<SegmentReplayer>> replayers_;
  std::vector<std::unordered_map<uint32_t, GroupSlot>> group_slots_;  // By value.
  CutValues kept_;               // For the open unit directly inside the root.
  std::optional<size_t> ended_;  // The unit before that.
  CutValues kept_by_ended_;
  std::unordered_map<uint32_t, std::weak_ptr<CutValue>> all_kept_;
  size_t live_slots_ = 0;                        // In all units, when their inputs were found.
  bool has_late_readers_ = false;                // A value was read after its unit got its inputs.
  std::vector<std::shared_ptr<CutValue>> late_;  // Such listed values, and offloaded ones.
  std::vector<uint32_t> missing_;                // Read by a unit, but neither made by it nor kept.
  std::vector<bool> needed_;                     // By value.
};

}  // namespace remat
