// SPDX-License-Identifier: BSD-3-Clause

// Applies cuts to a tape that is recorded: which segment a value belongs to, and who keeps it.
#include "tape_cutter.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <utility>

#include "unseen.h"

namespace remat {

TapeCutter::TapeCutter(Tape& tape, const Cuts& cuts, std::shared_ptr<Region> root,
                       std::shared_ptr<const TapeReplayer> whole, Keep keep)
    : tape_(tape),
      tree_(cuts),
      positions_(cuts.positions),
      policies_(cuts.policies),
      root_(std::move(root)),
      whole_(std::move(whole)),
      keep_(std::move(keep)),
      regions_(tree_.units()),
      replayers_(tree_.units()),
      group_slots_(tree_.units()) {
  tape_.parts_.assign(tree_.units(), {.begin = TapePart::kOpen, .end = TapePart::kOpen});
  open_units();
}

/// Opens the units that begin with this segment.
void TapeCutter::open_units() {
  const auto begin = static_cast<uint32_t>(segment_ == 0 ? 0 : positions_[segment_ - 1]);
  for (const size_t unit : tree_.beginning(segment_)) {
    tape_.parts_[unit].begin = begin;
    tape_.parts_[unit].first_value = static_cast<uint32_t>(tape_.values_.size());
    const bool is_group = tree_.is_group(unit);
    const std::string prefix = root_->name().empty() ? "" : root_->name() + ", ";
    const auto name =
        is_group ? c10::str(prefix, "segments ", tree_.begin(unit), " to ", tree_.end(unit) - 1)
                 : c10::str(prefix, "segment ", unit);
    std::shared_ptr<const RegionPolicy> policy;
    if (!is_group) policy = policies_.empty() ? root_->shared_policy() : policies_[unit];
    regions_[unit] = std::make_shared<Region>(Region::Options{.name = name,
                                                              .determinism = root_->determinism(),
                                                              .preserve_rng = root_->preserve_rng(),
                                                              .policy = std::move(policy)});
    replayers_[unit] = std::make_shared<SegmentReplayer>(whole_, root_, unit);
    regions_[unit]->set_replayer(replayers_[unit]);
  }
}

void TapeCutter::enter_next(size_t number) {
  const size_t last = segment_++;
  for (const size_t unit : tree_.ending(last)) {
    tape_.parts_[unit].end = static_cast<uint32_t>(number);
    tape_.parts_[unit].end_value = static_cast<uint32_t>(tape_.values_.size());
  }
  if (tree_.outermost(last) != tree_.outermost(segment_)) end_unit(tree_.outermost(last));
  open_units();
}

void TapeCutter::finish(size_t records) {
  TORCH_CHECK_VALUE(
      segment_ == positions_.size(), "[checkpoint] ", root_->label(), ": cuts.positions[", segment_,
      "]: expected a record that the function has after its first, of ", records, ", got ",
      positions_[segment_],
      ". Cut a tape of the same function and shapes: Tape::str() numbers its records.");
  for (TapePart& part : tape_.parts_) part.end = std::min(part.end, static_cast<uint32_t>(records));
  end_unit(tree_.outermost(segment_));
  close_ended();
}

void TapeCutter::end_unit(size_t top) {
  close_ended();
  ended_ = top;
  kept_by_ended_ = std::exchange(kept_, {});
}

size_t TapeCutter::segment_of(const TapeValue& value) const {
  return std::upper_bound(positions_.begin(), positions_.end(), value.number) - positions_.begin();
}

bool TapeCutter::is_of_other_segment(uint32_t value) const {
  const TapeValue& of = tape_.values()[value];
  return of.source == TapeValue::Source::kRecord && segment_of(of) != segment_;
}

void TapeCutter::read(const TapeRef& ref, const at::Tensor& tensor, bool is_outside) {
  if (is_of_other_segment(ref.value)) cross(ref, tensor, is_outside, Policy::kSave);
}

void TapeCutter::save(const TapeRef& ref, const at::Tensor& tensor, bool is_outside,
                      Policy policy) {
  if (tape_.values()[ref.value].source == TapeValue::Source::kRecord)
    cross(ref, tensor, is_outside, policy);
}

void TapeCutter::cross(const TapeRef& ref, const at::Tensor& tensor, bool is_outside,
                       Policy policy) {
  const size_t unit = tree_.common(segment_of(tape_.values()[ref.value]), segment_);
  if (unit == tree_.root()) return keep(ref.value, tensor, is_outside, policy);
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
  keep_(*here->kept(), tensor, policy);
}

void TapeCutter::before_write(uint32_t value, const at::Tensor& tensor) {
  const auto known = all_kept_.find(value);
  if (known == all_kept_.end()) return;
  const std::shared_ptr<CutValue> kept = known->second.lock();
  if (kept && !kept->kept()->is_copied()) keep_(*kept->kept(), tensor, Policy::kSave);
}

// The version of the tensor does not matter: the slot is made again, on memory of its own.
void TapeCutter::add_group_slot(const TapeRef& ref, const at::Tensor& tensor, size_t group) {
  auto& slots = tape_.parts_[group].slots;
  if (!group_slots_[group].try_emplace(ref.value, GroupSlot{slots.size(), nullptr}).second) return;
  regions_[group]->add_slot(variable_data(tensor));
  slots.push_back({.ref = ref, .held = nullptr});
}

/// What gives the value to `reader` from around it; null if nothing does.
std::shared_ptr<CutValue> TapeCutter::outer_value(uint32_t value, size_t reader) {
  for (const CutValues* values : {&kept_by_ended_, &kept_}) {
    if (const auto kept = values->find(value); kept != values->end()) return kept->second;
  }
  GroupSlot* found = nullptr;
  size_t found_in = 0;
  for (size_t group = tree_.parent(reader); group != tree_.root(); group = tree_.parent(group)) {
    const auto entry = group_slots_[group].find(value);
    if (entry == group_slots_[group].end()) continue;
    found = &entry->second;
    found_in = group;
  }
  if (!found) return nullptr;
  if (!found->value) {
    found->value = std::make_shared<CutValue>(value, regions_[found_in],
                                              regions_[found_in]->slot(found->slot));
  }
  return found->value;
}

std::vector<std::shared_ptr<const CutValue>> TapeCutter::inputs_of(size_t unit) {
  std::vector<std::shared_ptr<const CutValue>> inputs;
  enum class Need : uint8_t { kNot, kMade, kGiven };
  std::unordered_map<uint32_t, Need> needs;
  const auto need = [&](const TapeRef& ref) {
    if (!ref.defined()) return;
    Need& known = needs[ref.value];
    if (known != Need::kNot) return;
    needed_[ref.value] = true;
    auto given = outer_value(ref.value, unit);
    known = given ? Need::kGiven : Need::kMade;
    if (given) inputs.push_back(std::move(given));
  };
  const TapePart& part = tape_.parts_[unit];
  for (const TapeSlot& slot : part.slots) need(slot.ref);
  for (uint32_t i = part.end; i > part.begin; --i) {
    const TapeRecord& record = tape_.records()[i - 1];
    const bool runs = tape_.makes_any(record, [&](uint32_t value) {
      const auto entry = needs.find(value);
      return entry != needs.end() && entry->second == Need::kMade;
    });
    for (const auto j : c10::irange(runs && record.op->reads_data() ? record.ref_count : 0))
      need(tape_.refs(record)[j]);
  }
  return inputs;
}

/// Gives up what no unit inside the group reads.
void TapeCutter::drop_unread_slots(size_t group) {
  for (const auto i : c10::irange(tape_.parts_[group].slots.size())) {
    TapeSlot& slot = tape_.parts_[group].slots[i];
    if (group_slots_[group].at(slot.ref.value).value) continue;
    slot.ref = {};
    regions_[group]->release(regions_[group]->slot(i));
  }
}

void TapeCutter::close_ended() {
  if (!ended_) return;
  needed_.resize(tape_.values().size());
  const std::vector<size_t> units = tree_.inside(*ended_);
  for (const size_t unit : units) {
    if (tree_.is_group(unit)) drop_unread_slots(unit);
    replayers_[unit]->set_inputs(inputs_of(unit));
  }
  for (const size_t unit : units) {
    regions_[unit]->close();
    group_slots_[unit].clear();
    replayers_[unit].reset();
    regions_[unit].reset();
  }
  kept_by_ended_.clear();
  ended_.reset();
}

}  // namespace remat
