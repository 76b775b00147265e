// SPDX-License-Identifier: BSD-3-Clause

// Opening and closing units, and finding their inputs.
#include <remat/tape/cut_units.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <string>

#include <remat/engine/region_policy.h>
#include <remat/engine/torch_compat.h>
#include <remat/engine/unseen.h>

namespace remat {

CutUnits::CutUnits(Tape& tape, const PlannedCuts& cuts, std::shared_ptr<Region> root,
                   std::shared_ptr<const TapeReplayer> whole, const CutValues& kept)
    : tape_(tape),
      root_(std::move(root)),
      whole_(std::move(whole)),
      kept_(kept),
      policies_(cuts.policies),
      tree_(cuts),
      regions_(tree_.units()),
      replayers_(tree_.units()),
      group_slots_(tree_.units()) {
  tape_.parts_.assign(tree_.units(), {.begin = TapePart::kOpen, .end = TapePart::kOpen});
}

void CutUnits::open(size_t segment, size_t record, bool is_planned) {
  for (const size_t unit : tree_.beginning(segment)) {
    tape_.parts_[unit].begin = static_cast<uint32_t>(record);
    tape_.parts_[unit].first_value = static_cast<uint32_t>(tape_.values_.size());
    open_unit(unit, segment, is_planned);
  }
}

void CutUnits::open_unit(size_t unit, size_t segment, bool is_planned) {
  const bool is_group = tape_.parts_[unit].is_group = tree_.is_group(unit);
  const std::string prefix = root_->name().empty() ? "" : root_->name() + ", ";
  const auto name =
      is_group ? c10::str(prefix, "segments ", tree_.begin(unit), " to ", tree_.end(unit) - 1)
               : c10::str(prefix, "segment ", segment);
  std::shared_ptr<const RegionPolicy> policy;
  if (!is_group && policies_.empty()) policy = root_->shared_policy();
  if (!is_group && !policies_.empty() && is_planned) policy = policies_[segment];
  regions_[unit] = Region::make(Region::Options{.name = name,
                                                .determinism = root_->determinism(),
                                                .preserve_rng = root_->preserve_rng(),
                                                .policy = std::move(policy),
                                                .is_unit = true,
                                                .is_exact = root_->is_exact()});
  replayers_[unit] = std::make_shared<SegmentReplayer>(whole_, root_, unit);
  regions_[unit]->set_replayer(replayers_[unit]);
}

void CutUnits::end(size_t segment, size_t record) {
  for (const size_t unit : tree_.ending(segment)) {
    tape_.parts_[unit].end = static_cast<uint32_t>(record);
    tape_.parts_[unit].end_value = static_cast<uint32_t>(tape_.values_.size());
  }
}

void CutUnits::end_tape(size_t records) {
  for (TapePart& part : tape_.parts_) {
    part.begin = std::min(part.begin, static_cast<uint32_t>(records));
    part.end = std::min(part.end, static_cast<uint32_t>(records));
  }
}

void CutUnits::add_segment() {
  tree_.add_segment();
  tape_.parts_.push_back({.begin = TapePart::kOpen, .end = TapePart::kOpen});
  regions_.emplace_back();
  replayers_.emplace_back();
  group_slots_.emplace_back();
}

// The slot's tensor has a new version counter, because writes to `tensor` do not matter to a slot
// that replays recompute in new memory.
bool CutUnits::add_group_slot(const TapeRef& ref, const at::Tensor& tensor, size_t group) {
  auto& slots = tape_.parts_[group].slots;
  if (!group_slots_[group].try_emplace(ref.value, slots.size(), nullptr).second) return false;
  regions_[group]->add_slot(variable_data(tensor));
  slots.push_back({.ref = ref});
  return true;
}

/// Returns `value` as the forward keeps it or, if it keeps none, as the outermost group around
/// `reader` with a slot for the value makes it. Null if there is neither: `reader` must make it.
std::shared_ptr<CutValue> CutUnits::outer_value(uint32_t value, size_t reader) {
  if (auto known = kept_.find(value)) return known;
  GroupSlots::mapped_type* found = nullptr;
  size_t found_in = 0;
  for (size_t group = tree_.parent(reader); group != CutTree::kRoot; group = tree_.parent(group)) {
    const auto entry = group_slots_[group].find(value);
    if (entry == group_slots_[group].end()) continue;
    found = &entry->second;
    found_in = group;
  }
  if (!found) return nullptr;
  auto& [slot, shared] = *found;
  if (!shared) {
    shared = std::make_shared<CutValue>(value, regions_[found_in], regions_[found_in]->slot(slot),
                                        tree_.groups_around(found_in));
  }
  return shared;
}

UnitInputs::Found CutUnits::search(size_t unit) {
  return UnitInputs::find(
      tape_, tape_.parts_[unit], *regions_[unit],
      [&](uint32_t value) { return outer_value(value, unit); }, needed_);
}

size_t CutUnits::live_slots() const {
  size_t sum = 0;
  for (const auto& region : regions_) sum += region ? region->live_count() : 0;
  return sum;
}

void CutUnits::find_inputs(size_t unit) {
  UnitInputs::Found found = search(unit);
  missing_.insert(missing_.end(), found.missing.begin(), found.missing.end());
  replayers_[unit]->inputs().set(std::move(found), *regions_[unit]);
}

void CutUnits::close(size_t top) {
  needed_.resize(tape_.values().size());
  const std::vector<size_t> units = tree_.inside(top);
  for (const size_t unit : units) {
    if (tree_.is_group(unit)) drop_unread_slots(unit);
    find_inputs(unit);
    live_slots_ += regions_[unit]->live_count();
  }
  for (const size_t unit : units) regions_[unit]->close();
}

void CutUnits::find_inputs_again(bool begin_earlier) {
  needed_.assign(tape_.values().size(), false);
  missing_.clear();
  for (const size_t unit : tree_.inside(CutTree::kRoot)) {
    if (tree_.is_group(unit)) drop_unread_slots(unit);
    if (begin_earlier && !search(unit).missing.empty()) tape_.parts_[unit].begin = 0;
    find_inputs(unit);
  }
}

/// Gives up those slots of the group that no unit inside the group reads.
void CutUnits::drop_unread_slots(size_t group) {
  for (const auto i : c10::irange(tape_.parts_[group].slots.size())) {
    TapeSlot& slot = tape_.parts_[group].slots[i];
    if (!slot.ref.defined()) continue;
    const auto entry = group_slots_[group].find(slot.ref.value);
    const std::shared_ptr<CutValue>& value = entry->second.second;
    if (value.use_count() > 1) continue;
    slot.ref = {};
    if (!value) regions_[group]->release(regions_[group]->slot(i));  // Else ~CutValue() does.
    group_slots_[group].erase(entry);
  }
}

void CutUnits::check_missing() const {
  if (missing_.empty()) return;
  const uint32_t value = missing_.front();
  TORCH_CHECK_VALUE(false, "[checkpoint] ", root_->label(),
                    ": cuts.keep: expected all that replays ",
                    "of segments read of other segments, got nothing of %", value, " = ",
                    tape_.maker(value), ", which record ", tape_.values()[value].number,
                    " makes. Add that record and result, or leave cuts.keep out.");
}

void CutUnits::finish() {
  group_slots_.assign(tree_.units(), {});
  replayers_.assign(tree_.units(), nullptr);
  regions_.assign(tree_.units(), nullptr);
}

}  // namespace remat
