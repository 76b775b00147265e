// SPDX-License-Identifier: BSD-3-Clause

// Applying cuts to a tape that is being recorded: which segment makes a value, and what crosses.
#include <remat/tape/tape_cutter.h>

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>

#include <remat/engine/tensor_layout.h>

namespace remat {

TapeCutter::TapeCutter(Tape& tape, const PlannedCuts& cuts, std::shared_ptr<Region> root,
                       std::shared_ptr<const TapeReplayer> whole, CutValues::Keep keep)
    : tape_(tape),
      kept_(std::move(keep)),
      units_(tape, cuts, std::move(root), std::move(whole), kept_),
      listed_(cuts.keep),
      positions_(cuts.positions),
      rest_(cuts.rest_bytes, cuts.expected && cuts.expected->without_cpu, cuts.while_recorded),
      cuts_now_(cuts.while_recorded) {
  if (cuts.expected) comparison_.emplace(tape_, cuts.expected, cuts.differs);
  open_segment();
}

void TapeCutter::open_segment() {
  units_.open(segment_, segment_ == 0 ? 0 : positions_[segment_ - 1],
              /*is_planned=*/phase_ != Phase::kRest);
}

/// Begins an unplanned segment with record `number`.
void TapeCutter::add_segment(size_t number) {
  phase_ = Phase::kRest;
  next_cut_ = NextCut::kPlanned;
  positions_.push_back(number);
  units_.add_segment();
  rest_.begin_segment();
}

void TapeCutter::enter_next(size_t number) {
  if (next_cut_ == NextCut::kHere) add_segment(number);
  const size_t last = segment_++;
  units_.end(last, number);
  const CutTree& tree = units_.tree();
  if (tree.outermost(last) != tree.outermost(segment_)) end_unit(tree.outermost(last));
  open_segment();
}

void TapeCutter::finish(size_t records, size_t slots) {
  units_.for_each_slot(segment_,
                       [](size_t, TapeSlot& slot, bool is_live) { slot.is_dropped = !is_live; });
  if (comparison_) {
    compare_end(slots);
  } else {
    check_positions(records);
    listed_.check_done("[checkpoint] " + units_.root().label(), records);
  }
  units_.end_tape(records);
  end_unit(units_.tree().outermost(segment_));
  close_ended();
  const bool misses_plan = phase_ != Phase::kPlan && units_.misses_any();
  if (kept_.has_late_readers() || misses_plan || units_.has_new_dead_slots())
    units_.find_inputs_again(/*begin_earlier=*/phase_ != Phase::kPlan);
  units_.check_missing();
  kept_.finish();
  units_.finish();
}

void TapeCutter::check_positions(size_t records) const {
  TORCH_CHECK_VALUE(
      segment_ == positions_.size(), "[checkpoint] ", units_.root().label(), ": cuts.positions[",
      segment_, "]: expected a record that the function has after its first, of ", records,
      ", got ", positions_[segment_],
      ". Cut a tape of the same function and shapes: Tape::str() numbers its records.");
}

void TapeCutter::end_unit(size_t top) {
  close_ended();
  ended_ = top;
  kept_.end_unit();
}

void TapeCutter::close_ended() {
  if (!ended_) return;
  units_.close(*ended_);
  kept_.drop_ended();
  ended_.reset();
}

bool TapeCutter::plans_slot(size_t number, const TapeRef& ref) {
  if (!comparison_ || phase_ == Phase::kRest) return true;
  if (phase_ == Phase::kDiffers) return false;
  const ExpectedTape::Slot* const slot = comparison_->slot(number);
  // The record does not matter, because the plan depends only on the segment that saves the tensor.
  if (slot && slot->value == comparison_->value_of_slot(ref) &&
      segment_of(slot->record) == segment_)
    return true;
  differ(comparison_->other_slot(number, comparison_->value_of_slot(ref)));
  return false;
}

void TapeCutter::compare_record() {
  if (phase_ == Phase::kPlan && !comparison_->is_record_expected()) {
    differ(comparison_->other_op());
  } else if (phase_ == Phase::kPlan && !comparison_->are_bytes_expected(rest_.made_bytes())) {
    differ(comparison_->more_bytes(rest_.made_bytes()));
  }
  if (phase_ != Phase::kPlan) rest_.wrote(tape_, tape_.records().back());
  const bool looks = phase_ == Phase::kDiffers || (phase_ == Phase::kRest && rest_.is_look_due());
  next_cut_ = looks ? NextCut::kLook : NextCut::kPlanned;
}

/// Counts a record of a tape that gets its cuts while it is recorded.
void TapeCutter::count_record() {
  rest_.wrote(tape_, tape_.records().back());
  next_cut_ = rest_.is_look_due() ? NextCut::kLook : NextCut::kPlanned;
}

/// See Note [Where the rest is cut] and PlannedCuts::while_recorded.
void TapeCutter::look_for_cut() {
  const std::unordered_map<uint32_t, size_t> saved = bytes_saved();
  size_t most = phase_ == Phase::kDiffers ? rest_.max_at_first_cut() : 0;
  for (const auto& [value, bytes] : saved) most += is_of_other_segment(value) ? 0 : bytes;
  const size_t crossing = rest_.bytes_to_cross([&](uint32_t value) {
    return cuts_now_ ? is_of_other_segment(value) : saved.count(value) != 0 || kept_.find(value);
  });
  next_cut_ = crossing + crossing_bytes_ <= most ? NextCut::kHere : NextCut::kPlanned;
}

/// Maps each recorded value that the open segment saves for backward to the bytes that it saves.
std::unordered_map<uint32_t, size_t> TapeCutter::bytes_saved() const {
  std::unordered_map<uint32_t, size_t> saved;
  if (phase_ == Phase::kDiffers) return saved;  // The forward keeps what the segment saves.
  const std::vector<TapeSlot>& slots = tape_.parts()[unit()].slots;
  for (const auto i : c10::irange(slots.size())) {
    const TapeRef& ref = slots[i].ref;
    if (!ref.defined() || !region()->slots()[i].live) continue;
    if (tape_.values()[ref.value].source != TapeValue::Source::kRecord) continue;
    size_t& bytes = saved[ref.value];
    bytes = std::max(bytes, tape_.layout(ref.layout).bytes_spanned());
  }
  return saved;
}

/// Compares the end of the tape with the end that the plan expects.
void TapeCutter::compare_end(size_t slots) {
  const bool is_plan_done = segment_ == positions_.size() && listed_.is_done();
  if (phase_ == Phase::kPlan && !(is_plan_done && comparison_->is_end_expected(slots)))
    differ(comparison_->other_end(slots));
  if (phase_ == Phase::kPlan) compare_dropped_slots();
}

/// If a slot that should be freed by now according to the plan is alive, the tape differs from its
/// plan, so units that miss inputs begin at the start of the tape.
void TapeCutter::compare_dropped_slots() {
  std::optional<size_t> held;
  units_.for_each_slot(segment_, [&](size_t number, const TapeSlot& slot, bool /*is_live*/) {
    if (!slot.is_dropped && comparison_->slot(number)->is_dropped && !held) held = number;
  });
  if (held) differ(comparison_->other_slot(*held, comparison_->slot(*held)->value));
}

/// See Note [A tape that differs from its plan].
void TapeCutter::differ(const TapeDifference& difference) {
  phase_ = Phase::kDiffers;
  units_.end_with(segment_);
  positions_.resize(segment_);
  comparison_->report(difference);
}

size_t TapeCutter::segment_of(uint32_t record) const {
  return std::upper_bound(positions_.begin(), positions_.end(), record) - positions_.begin();
}

bool TapeCutter::is_of_other_segment(uint32_t value) const {
  const TapeValue& of = tape_.values()[value];
  return of.source == TapeValue::Source::kRecord && segment_of(of.number) != segment_;
}

bool TapeCutter::may_cross(uint32_t value) const {
  if (phase_ == Phase::kDiffers) return false;  // No replay runs the op that reads the value.
  return !listed_ || phase_ != Phase::kPlan || listed_.contains(value);
}

/// Keeps the listed values of the last record, unless that record differs from the plan. A value to
/// offload is moved at once, even if units of its group read it first, and is held until finish(),
/// because later units may read it.
void TapeCutter::keep_listed() {
  for (const ListedValues::Made& made : listed_.take_made()) {
    if (phase_ != Phase::kPlan) break;
    if (made.policy == Policy::kOffload) {
      keep(made.ref.value, made.tensor, made.is_outside, made.policy);
      kept_.hold_to_end(made.ref.value);
    } else {
      cross(made.ref, made.tensor, made.is_outside, made.policy);
    }
  }
}

void TapeCutter::read(const TapeRef& ref, const at::Tensor& tensor, bool is_outside) {
  if (is_of_other_segment(ref.value) && may_cross(ref.value))
    cross(ref, tensor, is_outside, Policy::kSave);
}

void TapeCutter::read_for_slot(size_t slot, const TapeRef& ref, const at::Tensor& tensor,
                               bool is_outside) {
  if (plans_slot(slot, ref)) {
    read(ref, tensor, is_outside);
  } else if (tape_.values()[ref.value].source == TapeValue::Source::kRecord) {
    keep(ref.value, tensor, is_outside, Policy::kSave);
  }
}

void TapeCutter::save(const TapeRef& ref, const at::Tensor& tensor, bool is_outside,
                      Policy policy) {
  if (tape_.values()[ref.value].source != TapeValue::Source::kRecord) return;
  if (phase_ == Phase::kDiffers) return keep(ref.value, tensor, is_outside, policy);
  cross(ref, tensor, is_outside, policy);
}

void TapeCutter::cross(const TapeRef& ref, const at::Tensor& tensor, bool is_outside,
                       Policy policy) {
  const size_t unit = units_.tree().common(maker(ref.value), segment_);
  if (unit == CutTree::kRoot) return keep(ref.value, tensor, is_outside, policy);
  if (units_.add_group_slot(ref, tensor, unit) && cuts_now_)
    crossing_bytes_ += tape_.layout(ref.layout).bytes_spanned();
}

void TapeCutter::keep(uint32_t value, const at::Tensor& tensor, bool is_outside, Policy policy) {
  if (!kept_.keep(value, tensor, is_outside, policy)) return;
  const CutTree& tree = units_.tree();
  const size_t made_by = tree.outermost(maker(value));
  if (made_by == tree.outermost(segment_) || made_by == ended_) return;
  kept_.note_late_reader();
  if (listed_) kept_.hold_to_end(value);
}

void TapeCutter::before_write(uint32_t value, const at::Tensor& tensor) {
  const size_t copied_bytes = kept_.before_write(value, tensor);
  if (phase_ == Phase::kDiffers) rest_.copied(copied_bytes);
}

}  // namespace remat
