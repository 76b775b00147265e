// SPDX-License-Identifier: BSD-3-Clause

// Applying cuts to a tape that is being recorded: the segment of each value, and who keeps it.
#include "tape_cutter.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

#include <remat/tape/hidden_scopes.h>

#include "unseen.h"

namespace remat {

TapeCutter::TapeCutter(Tape& tape, const Cuts& cuts, std::shared_ptr<Region> root,
                       std::shared_ptr<const TapeReplayer> whole, Keep keep)
    : tape_(tape),
      tree_(cuts),
      positions_(cuts.positions),
      policies_(cuts.policies),
      listed_(cuts.keep),
      root_(std::move(root)),
      whole_(std::move(whole)),
      keep_(std::move(keep)),
      differs_(cuts.differs),
      rest_(cuts.rest_bytes, cuts.expected && cuts.expected->without_cpu, cuts.while_recorded),
      cuts_now_(cuts.while_recorded),
      regions_(tree_.units()),
      replayers_(tree_.units()),
      group_slots_(tree_.units()) {
  if (cuts.expected) comparison_.emplace(tape_, cuts.expected);
  tape_.parts_.assign(tree_.units(), {.begin = TapePart::kOpen, .end = TapePart::kOpen});
  open_units();
}

/// Opens the units that begin with this segment.
void TapeCutter::open_units() {
  const auto begin = static_cast<uint32_t>(segment_ == 0 ? 0 : positions_[segment_ - 1]);
  for (const size_t unit : tree_.beginning(segment_)) {
    tape_.parts_[unit].begin = begin;
    tape_.parts_[unit].first_value = static_cast<uint32_t>(tape_.values_.size());
    const bool is_group = tape_.parts_[unit].is_group = tree_.is_group(unit);
    const std::string prefix = root_->name().empty() ? "" : root_->name() + ", ";
    const auto name =
        is_group ? c10::str(prefix, "segments ", tree_.begin(unit), " to ", tree_.end(unit) - 1)
                 : c10::str(prefix, "segment ", segment_);
    std::shared_ptr<const RegionPolicy> policy;
    if (!is_group && policies_.empty()) policy = root_->shared_policy();
    if (!is_group && !policies_.empty() && phase_ != Phase::kRest) policy = policies_[segment_];
    regions_[unit] = Region::make(Region::Options{.name = name,
                                                  .determinism = root_->determinism(),
                                                  .preserve_rng = root_->preserve_rng(),
                                                  .policy = std::move(policy),
                                                  .is_unit = true,
                                                  .is_exact = root_->is_exact()});
    replayers_[unit] = std::make_shared<SegmentReplayer>(whole_, root_, unit);
    regions_[unit]->set_replayer(replayers_[unit]);
  }
}

/// Begins a segment of the rest with record `number`.
void TapeCutter::add_segment(size_t number) {
  phase_ = Phase::kRest;
  tree_.add_segment();
  positions_.push_back(number);
  tape_.parts_.push_back({.begin = TapePart::kOpen, .end = TapePart::kOpen});
  regions_.emplace_back();
  replayers_.emplace_back();
  group_slots_.emplace_back();
  cuts_next_ = false;
  rest_.begin_segment();
}

void TapeCutter::enter_next(size_t number) {
  if (cuts_next_) add_segment(number);
  const size_t last = segment_++;
  for (const size_t unit : tree_.ending(last)) {
    tape_.parts_[unit].end = static_cast<uint32_t>(number);
    tape_.parts_[unit].end_value = static_cast<uint32_t>(tape_.values_.size());
  }
  if (tree_.outermost(last) != tree_.outermost(segment_)) end_unit(tree_.outermost(last));
  open_units();
}

void TapeCutter::finish(size_t records) {
  for_each_slot([](size_t, TapeSlot& slot, bool is_live) { slot.is_dropped = !is_live; });
  if (comparison_) {
    compare_end();
  } else {
    check_positions(records);
    check_listed(records);
  }
  for (TapePart& part : tape_.parts_) {
    part.begin = std::min(part.begin, static_cast<uint32_t>(records));
    part.end = std::min(part.end, static_cast<uint32_t>(records));
  }
  end_unit(tree_.outermost(segment_));
  close_ended();
  const bool misses_plan = phase_ != Phase::kPlan && !missing_.empty();
  if (has_late_readers_ || misses_plan || live_slots() != live_slots_) find_inputs_again();
  check_missing();
  late_.clear();
  group_slots_.assign(tree_.units(), {});
  replayers_.assign(tree_.units(), nullptr);
  regions_.assign(tree_.units(), nullptr);
}

void TapeCutter::check_positions(size_t records) const {
  TORCH_CHECK_VALUE(
      segment_ == positions_.size(), "[checkpoint] ", root_->label(), ": cuts.positions[", segment_,
      "]: expected a record that the function has after its first, of ", records, ", got ",
      positions_[segment_],
      ". Cut a tape of the same function and shapes: Tape::str() numbers its records.");
}

void TapeCutter::check_listed(size_t records) const {
  if (!listed_ || next_listed_ == listed_->size()) return;
  const Cuts::Kept& kept = (*listed_)[next_listed_];
  TORCH_CHECK_VALUE(false, "[checkpoint] ", root_->label(), ": cuts.keep[", next_listed_,
                    "]: expected a value that the function makes in one of its ", records,
                    " records, got result ", kept.result, " of record ", kept.record,
                    ". Cut a tape of the same function: Tape::str() numbers its records.");
}

void TapeCutter::check_missing() const {
  if (missing_.empty()) return;
  const uint32_t value = missing_.front();
  TORCH_CHECK_VALUE(false, "[checkpoint] ", root_->label(),
                    ": cuts.keep: expected all that replays ",
                    "of segments read of other segments, got nothing of %", value, " = ",
                    tape_.maker(value), ", which record ", tape_.values()[value].number,
                    " makes. Add that record and result, or leave cuts.keep out.");
}

void TapeCutter::end_unit(size_t top) {
  close_ended();
  ended_ = top;
  kept_by_ended_ = std::exchange(kept_, {});
}

bool TapeCutter::plans_slot(size_t number, const TapeRef& ref) {
  if (!comparison_ || phase_ == Phase::kRest) return true;
  if (phase_ == Phase::kDiffers) return false;
  const ExpectedTape::Slot* const slot = comparison_->slot(number);
  // The plan depends only on the segment that saves it.
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
  looks_ = phase_ == Phase::kDiffers || (phase_ == Phase::kRest && rest_.is_look_due());
}

/// Counts a record of a tape that is cut while it is recorded.
void TapeCutter::count_record() {
  rest_.wrote(tape_, tape_.records().back());
  looks_ = rest_.is_look_due();
}

/// See Note [Where the rest is cut] and Cuts::while_recorded.
void TapeCutter::look_for_cut() {
  looks_ = false;
  const std::unordered_map<uint32_t, size_t> saved = bytes_saved();
  size_t most = phase_ == Phase::kDiffers ? rest_.most_at_first() : 0;
  for (const auto& [value, bytes] : saved) most += is_of_other_segment(value) ? 0 : bytes;
  const size_t crossing = rest_.bytes_to_cross([&](uint32_t value) {
    return cuts_now_ ? is_of_other_segment(value) : saved.count(value) != 0 || kept(value);
  });
  cuts_next_ = crossing + crossing_bytes_ <= most;
}

/// Bytes that replays of the open segment recompute for autograd, by value.
std::unordered_map<uint32_t, size_t> TapeCutter::bytes_saved() const {
  std::unordered_map<uint32_t, size_t> saved;
  if (phase_ == Phase::kDiffers) return saved;  // The forward keeps it.
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

/// Compares the plan when the function has ended.
void TapeCutter::compare_end() {
  const bool is_plan_done =
      segment_ == positions_.size() && (!listed_ || next_listed_ == listed_->size());
  if (phase_ == Phase::kPlan && !(is_plan_done && comparison_->is_end_expected(slots_)))
    differ(comparison_->other_end(slots_));
  if (phase_ == Phase::kPlan) compare_dropped_slots();
}

/// If a slot is alive that the plan drops, units that miss inputs begin at the start of the tape.
void TapeCutter::compare_dropped_slots() {
  std::optional<size_t> held;
  for_each_slot([&](size_t number, const TapeSlot& slot, bool /*is_live*/) {
    if (!slot.is_dropped && comparison_->slot(number)->is_dropped && !held) held = number;
  });
  if (held) differ(comparison_->other_slot(*held, comparison_->slot(*held)->value));
}

/// See Note [A tape that differs from its plan].
void TapeCutter::differ(const TapeDifference& difference) {
  phase_ = Phase::kDiffers;
  tree_.end_with(segment_);
  positions_.resize(segment_);
  if (!differs_) return;
  const SuspendScopes suspend;
  differs_(difference);
}

size_t TapeCutter::segment_of(uint32_t record) const {
  return std::upper_bound(positions_.begin(), positions_.end(), record) - positions_.begin();
}

bool TapeCutter::is_of_other_segment(uint32_t value) const {
  const TapeValue& of = tape_.values()[value];
  return of.source == TapeValue::Source::kRecord && segment_of(of.number) != segment_;
}

bool TapeCutter::may_cross(uint32_t value) const {
  if (phase_ == Phase::kDiffers) return false;  // No replay runs what reads it.
  return !listed_ || phase_ != Phase::kPlan || listed_as(value);
}

// Listed values that are never made stay in the list: finish() reports them.
void TapeCutter::made(size_t record, size_t result, const TapeRef& ref, const at::Tensor& tensor,
                      bool is_outside) {
  if (!listed_ || next_listed_ == listed_->size() || phase_ != Phase::kPlan) return;
  const Cuts::Kept& next = (*listed_)[next_listed_];
  if (next.record != record || next.result != result) return;
  ++next_listed_;
  listed_as_.resize(ref.value + 1);
  listed_as_[ref.value] = next.policy;
  listed_now_.push_back({ref, tensor, is_outside, next.policy});
}

/// Keeps the listed values of the record that has just been made, unless it differs. Offloaded
/// values are moved now, though units of the same group may be the first to read them, and wait for
/// late readers.
void TapeCutter::keep_listed() {
  for (const Listed& made : listed_now_) {
    if (phase_ != Phase::kPlan) break;
    if (made.policy == Policy::kOffload) {
      keep(made.ref.value, made.tensor, made.is_outside, made.policy);
      late_.push_back(kept_[made.ref.value]);
    } else {
      cross(made.ref, made.tensor, made.is_outside, made.policy);
    }
  }
  listed_now_.clear();
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
  const size_t unit = tree_.common(maker(ref.value), segment_);
  if (unit == CutTree::kRoot) return keep(ref.value, tensor, is_outside, policy);
  add_group_slot(ref, tensor, unit);
}

void TapeCutter::keep(uint32_t value, const at::Tensor& tensor, bool is_outside, Policy policy) {
  std::shared_ptr<CutValue>& here = kept_[value];
  if (here) return;
  std::weak_ptr<CutValue>& known = all_kept_[value];
  here = known.lock();
  if (here) return;
  here = std::make_shared<CutValue>(
      value, is_outside ? CallProduct::written(0, tensor) : CallProduct(0, tensor));
  known = here;
  const size_t made_by = tree_.outermost(maker(value));
  if (made_by != tree_.outermost(segment_) && made_by != ended_) {
    has_late_readers_ = true;
    if (listed_) late_.push_back(here);
  }
  keep_(*here->kept(), tensor, policy);
}

/// The kept value; null if nobody keeps it.
std::shared_ptr<CutValue> TapeCutter::kept(uint32_t value) const {
  const auto known = all_kept_.find(value);
  return known == all_kept_.end() ? nullptr : known->second.lock();
}

void TapeCutter::laid_out_anew(uint32_t value, const at::Tensor& tensor) {
  if (const std::shared_ptr<CutValue> known = kept(value)) known->kept()->expect_version(tensor);
}

void TapeCutter::before_write(uint32_t value, const at::Tensor& tensor) {
  const std::shared_ptr<CutValue> known = kept(value);
  if (!known || known->kept()->is_copied()) return;
  if (phase_ == Phase::kDiffers) rest_.copied(known->kept()->size_bytes());
  keep_(*known->kept(), tensor, Policy::kSave);
}

// The tensor's version does not matter: the slot is recomputed, on memory of its own.
void TapeCutter::add_group_slot(const TapeRef& ref, const at::Tensor& tensor, size_t group) {
  auto& slots = tape_.parts_[group].slots;
  if (!group_slots_[group].try_emplace(ref.value, GroupSlot{slots.size(), nullptr}).second) return;
  if (cuts_now_) crossing_bytes_ += tape_.layout(ref.layout).bytes_spanned();
  regions_[group]->add_slot(variable_data(tensor));
  slots.push_back({.ref = ref, .held = nullptr});
}

/// The value as `reader` gets it from around it; null if it must make it itself.
std::shared_ptr<CutValue> TapeCutter::outer_value(uint32_t value, size_t reader) {
  if (auto known = kept(value)) return known;
  GroupSlot* found = nullptr;
  size_t found_in = 0;
  for (size_t group = tree_.parent(reader); group != CutTree::kRoot; group = tree_.parent(group)) {
    const auto entry = group_slots_[group].find(value);
    if (entry == group_slots_[group].end()) continue;
    found = &entry->second;
    found_in = group;
  }
  if (!found) return nullptr;
  if (!found->value) {
    found->value =
        std::make_shared<CutValue>(value, regions_[found_in], regions_[found_in]->slot(found->slot),
                                   tree_.groups_around(found_in));
  }
  return found->value;
}

UnitInputs::Found TapeCutter::search(size_t unit) {
  return UnitInputs::find(
      tape_, tape_.parts_[unit], *regions_[unit],
      [&](uint32_t value) { return outer_value(value, unit); }, needed_);
}

/// Visits the segments' slots, in order of number.
template <class Visit>
void TapeCutter::for_each_slot(Visit&& visit) {
  size_t number = 0;
  for (size_t segment = 0; segment <= segment_; ++segment) {
    const size_t unit = tree_.unit_of(segment);
    std::vector<TapeSlot>& slots = tape_.parts_[unit].slots;
    for (const auto i : c10::irange(slots.size()))
      visit(number++, slots[i], regions_[unit]->slots()[i].live);
  }
}

/// Number of live slots in all units.
size_t TapeCutter::live_slots() const {
  size_t sum = 0;
  for (const auto& region : regions_) sum += region ? region->live_count() : 0;
  return sum;
}

void TapeCutter::find_inputs(size_t unit) {
  UnitInputs::Found found = search(unit);
  missing_.insert(missing_.end(), found.missing.begin(), found.missing.end());
  replayers_[unit]->inputs().set(std::move(found), *regions_[unit]);
}

/// Now it is known what is kept, and which branches the program has dropped: what only these need
/// is not needed. A unit of another tape's plan may have to begin earlier. Group slots that nobody
/// reads any more die.
void TapeCutter::find_inputs_again() {
  needed_.assign(tape_.values().size(), false);
  missing_.clear();
  for (const size_t unit : tree_.inside(CutTree::kRoot)) {
    if (tree_.is_group(unit)) drop_unread_slots(unit);
    if (phase_ != Phase::kPlan && !search(unit).missing.empty()) tape_.parts_[unit].begin = 0;
    find_inputs(unit);
  }
}

/// Gives up the group's slots that no unit inside it reads.
void TapeCutter::drop_unread_slots(size_t group) {
  for (const auto i : c10::irange(tape_.parts_[group].slots.size())) {
    TapeSlot& slot = tape_.parts_[group].slots[i];
    if (!slot.ref.defined()) continue;
    const auto entry = group_slots_[group].find(slot.ref.value);
    const std::shared_ptr<CutValue>& value = entry->second.value;
    if (value.use_count() > 1) continue;
    slot.ref = {};
    if (!value) regions_[group]->release(regions_[group]->slot(i));  // Else the value releases it.
    group_slots_[group].erase(entry);
  }
}

void TapeCutter::close_ended() {
  if (!ended_) return;
  needed_.resize(tape_.values().size());
  const std::vector<size_t> units = tree_.inside(*ended_);
  for (const size_t unit : units) {
    if (tree_.is_group(unit)) drop_unread_slots(unit);
    find_inputs(unit);
    live_slots_ += regions_[unit]->live_count();
  }
  for (const size_t unit : units) regions_[unit]->close();
  kept_by_ended_.clear();
  ended_.reset();
}

}  // namespace remat
