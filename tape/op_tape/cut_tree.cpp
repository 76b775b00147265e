// SPDX-License-Identifier: BSD-3-Clause

// Which group of a cut tape has which segments.
#include "cut_tree.h"

#include <c10/util/irange.h>

#include <algorithm>

namespace remat {

CutTree::CutTree(const Cuts& cuts) : segments_(cuts.segment_count()) {
  for (const auto i : c10::irange(segments_)) spans_.push_back({i, i + 1});
  spans_.insert(spans_.end(), cuts.groups.begin(), cuts.groups.end());
  // Inner ones first.
  std::sort(
      spans_.begin() + static_cast<std::ptrdiff_t>(segments_), spans_.end(),
      [](const Cuts::Group& a, const Cuts::Group& b) { return a.end - a.begin < b.end - b.begin; });
  spans_.push_back({0, segments_});
  beginning_.resize(segments_);
  ending_.resize(segments_);
  for (const auto unit : c10::irange(units())) {
    beginning_[begin(unit)].push_back(unit);
    ending_[end(unit) - 1].push_back(unit);
  }
  find_parents();
}

void CutTree::find_parents() {
  parents_.resize(units(), root());
  std::vector<size_t> open;  // the innermost last
  for (const auto segment : c10::irange(segments_)) {
    const std::vector<size_t>& begun = beginning_[segment];
    for (auto unit = begun.rbegin(); unit != begun.rend(); ++unit) {
      if (!open.empty()) parents_[*unit] = open.back();
      open.push_back(*unit);
    }
    open.resize(open.size() - ending_[segment].size());
  }
}

size_t CutTree::common(size_t segment, size_t other) const {
  size_t unit = parent(segment);
  while (unit != root() && !contains(unit, other)) unit = parent(unit);
  return unit;
}

size_t CutTree::outermost(size_t segment) const {
  size_t unit = segment;
  while (parent(unit) != root()) unit = parent(unit);
  return unit;
}

std::vector<size_t> CutTree::inside(size_t unit) const {
  std::vector<size_t> all;
  for (const auto segment : c10::irange(begin(unit), end(unit))) {
    for (const size_t other : beginning_[segment]) {
      if (contains(unit, other)) all.push_back(other);
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace remat
