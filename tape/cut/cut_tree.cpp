// SPDX-License-Identifier: BSD-3-Clause

// Building and searching the tree of a cut tape's units.
#include <remat/tape/cut_tree.h>

#include <c10/util/irange.h>

#include <algorithm>

namespace remat {

CutTree::CutTree(const PlannedCuts& cuts)
    : first_group_(cuts.segment_count()),
      planned_(cuts.segment_count()),
      adds_to_(cuts.while_recorded ? first_group_ : kRoot) {
  for (const auto i : c10::irange(planned_)) spans_.push_back({i, i + 1});
  spans_.insert(spans_.end(), cuts.groups.begin(), cuts.groups.end());
  if (cuts.while_recorded) spans_.push_back({0, planned_});
  // Inner groups first.
  std::sort(
      spans_.begin() + static_cast<std::ptrdiff_t>(planned_), spans_.end(),
      [](const Cuts::Group& a, const Cuts::Group& b) { return a.end - a.begin < b.end - b.begin; });
  end_of_groups_ = spans_.size();
  beginning_.resize(planned_);
  ending_.resize(planned_);
  for (const auto unit : c10::irange(units())) {
    beginning_[begin(unit)].push_back(unit);
    ending_[end(unit) - 1].push_back(unit);
  }
  find_parents();
}

void CutTree::find_parents() {
  parents_.resize(units(), kRoot);
  std::vector<size_t> open;  // The innermost is last.
  for (const auto segment : c10::irange(segments())) {
    const std::vector<size_t>& begun = beginning_[segment];
    for (auto unit = begun.rbegin(); unit != begun.rend(); ++unit) {
      if (!open.empty()) parents_[*unit] = open.back();
      open.push_back(*unit);
    }
    open.resize(open.size() - ending_[segment].size());
  }
}

size_t CutTree::common(size_t segment, size_t other) const {
  size_t unit = parent(unit_of(segment));
  while (unit != kRoot && (other < begin(unit) || other >= end(unit))) unit = parent(unit);
  return unit;
}

size_t CutTree::groups_around(size_t unit) const {
  size_t groups = 0;
  while ((unit = parent(unit)) != kRoot) ++groups;
  return groups;
}

size_t CutTree::outermost(size_t segment) const {
  size_t unit = unit_of(segment);
  while (parent(unit) != kRoot) unit = parent(unit);
  return unit;
}

std::vector<size_t> CutTree::inside(size_t unit) const {
  const Cuts::Group span = unit == kRoot ? Cuts::Group{0, segments()} : spans_[unit];
  std::vector<size_t> all;
  for (const auto segment : c10::irange(span.begin, span.end)) {
    for (const size_t other : beginning_[segment]) {
      if (end(other) <= span.end) all.push_back(other);
    }
  }
  std::sort(all.begin(), all.end());
  std::stable_partition(all.begin(), all.end(), [&](size_t other) { return !is_group(other); });
  return all;
}

void CutTree::end_with(size_t segment) {
  planned_ = segment + 1;
  beginning_.resize(planned_);
  ending_.resize(planned_);
  ending_[segment].clear();
  for (size_t unit = segment; unit != kRoot; unit = parent(unit)) {
    spans_[unit].end = planned_;
    ending_[segment].push_back(unit);
  }
}

void CutTree::add_segment() {
  const size_t segment = segments();
  const size_t unit = units();
  spans_.push_back({segment, segment + 1});
  parents_.push_back(adds_to_);
  beginning_.push_back({unit});
  ending_.push_back({unit});
  if (adds_to_ == kRoot) return;
  spans_[adds_to_].end = segments();
  ending_[segment - 1].pop_back();
  ending_[segment].push_back(adds_to_);
}

}  // namespace remat
