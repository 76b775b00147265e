// SPDX-License-Identifier: BSD-3-Clause

// Nesting of groups, and homes of values.
#include "step_units.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace remat::detail {

StepUnits::StepUnits(const StepGraph& graph, const std::vector<int32_t>& positions,
                     const StepGroups& groups)
    : segments_(static_cast<int32_t>(positions.size()) + 1),
      segment_of_(graph.profile.records.size()) {
  int32_t begin = 0;
  for (int32_t s = 0; s < segments_; ++s) {
    const int32_t end = s + 1 < segments_ ? positions[s] : graph.size();
    std::fill(segment_of_.begin() + begin, segment_of_.begin() + end, s);
    units_.push_back({s, s + 1, begin, end, root});
    begin = end;
  }
  for (const auto& [first, end] : groups)
    units_.push_back({first, end, units_[first].begin, units_[end - 1].end, root});
  find_parents();
  homes_.assign(graph.profile.values.size(), root);
  for (size_t v = 0; v < homes_.size(); ++v) homes_[v] = find_home(graph, static_cast<int32_t>(v));
  order_.resize(units_.size());
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    return std::tuple(-units_[a].first_segment, units_[a].end_segment) <
           std::tuple(-units_[b].first_segment, units_[b].end_segment);
  });
}

void StepUnits::find_parents() {
  for (int32_t u = 0; u < size(); ++u) {
    for (int32_t w = segments_; w < size(); ++w) {
      if (w == u || units_[w].first_segment > units_[u].first_segment ||
          units_[w].end_segment < units_[u].end_segment)
        continue;
      const int32_t best = units_[u].parent;
      const auto length = [&](int32_t x) {
        return units_[x].end_segment - units_[x].first_segment;
      };
      if (best == root || length(w) < length(best)) units_[u].parent = w;
    }
  }
  for (int32_t u = 0; u < size(); ++u) {
    units_[u].top = u;
    while (units_[units_[u].top].parent != root) units_[u].top = units_[units_[u].top].parent;
  }
  int32_t tops = -1;
  for (int32_t s = 0; s < segments_; ++s) {
    if (units_[units_[s].top].first_segment == s) ++tops;
    units_[s].top_index = tops;
  }
  for (int32_t u = segments_; u < size(); ++u)
    units_[u].top_index = units_[units_[u].first_segment].top_index;
}

int32_t StepUnits::find_home(const StepGraph& graph, int32_t value) const {
  const int32_t maker = graph.maker(value);
  if (maker < 0) return root;
  int32_t home = units_[segment_of_[maker]].parent;
  for (const int32_t use : graph.uses[value]) {
    while (home != root && !holds(home, segment_of_[use])) home = units_[home].parent;
  }
  return home;
}

bool StepUnits::holds(int32_t unit, int32_t segment) const {
  return units_[unit].first_segment <= segment && segment < units_[unit].end_segment;
}

bool StepUnits::properly_around(int32_t outer, int32_t inner) const {
  if (outer == root) return true;
  return outer != inner && holds(outer, units_[inner].first_segment) &&
         units_[inner].end_segment <= units_[outer].end_segment;
}

}  // namespace remat::detail
