// SPDX-License-Identifier: BSD-3-Clause

// Nests groups, finds the home of each value, and walks backward unit by unit: see Note [Until].
#include "step_needs.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
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

StepNeeds::StepNeeds(const StepGraph& graph, const StepUnits& units)
    : graph_(graph),
      units_(units),
      needs_(units.size()),
      group_slots_(units.size()),
      kept_until_(graph.profile.values.size()),
      asked_(graph.profile.values.size()) {}

void StepNeeds::walk(std::vector<char>& keep, MissingValues missing) {
  keep_ = &keep;
  missing_ = missing;
  kept_at_root_.clear();
  copied_from_outside_.clear();
  for (std::vector<int32_t>& slots : group_slots_) slots.clear();
  std::fill(kept_until_.begin(), kept_until_.end(), -1);
  for (Asked& asked : asked_) asked.unit = -1;
  for (const int32_t unit : units_.backward_order()) walk_unit(unit);
  for (HeldValue& kept : kept_at_root_) kept.until = kept_until_[kept.value];
}

void StepNeeds::walk_unit(int32_t unit) {
  unit_ = unit;
  UnitNeeds& needs = needs_[unit];
  needs.given.clear();
  needs.runs.clear();
  needs.held.clear();
  needs.given_held.clear();
  ask_for_slots(unit);
  for (int32_t j = units_[unit].end - 1; j >= units_[unit].begin; --j) {
    int32_t until = -1;
    for (const int32_t v : graph_.results[j]) {
      const Asked& asked = asked_[v];
      if (asked.unit == unit && !asked.given) until = std::max(until, asked.until);
    }
    if (until < 0) continue;
    needs.runs.push_back(j);
    const StepRecord& record = graph_.profile.records[j];
    if (!record.reads_data) continue;
    for (const int32_t v : record.reads) ask(v, until);
  }
  std::reverse(needs.runs.begin(), needs.runs.end());
  hand_on_given(needs);
}

void StepNeeds::ask_for_slots(int32_t unit) {
  for (const int32_t v : group_slots_[unit]) hold(v, kept_until_[v]);
  if (unit >= units_.segments()) return;
  for (int32_t j = units_[unit].begin; j < units_[unit].end; ++j) {
    for (const int32_t slot : graph_.slots_of_record[j]) {
      const StepSlot& saved = graph_.profile.slots[slot];
      hold(saved.value, graph_.until(saved));
    }
  }
}

void StepNeeds::hold(int32_t value, int32_t until) {
  ask(value, until);
  Asked& asked = asked_[value];
  std::vector<HeldValue>& held = asked.given ? needs_[unit_].given_held : needs_[unit_].held;
  if (asked.held < 0) {
    asked.held = static_cast<int32_t>(held.size());
    held.push_back({value, until});
  }
  held[asked.held].until = std::max(held[asked.held].until, until);
}

void StepNeeds::ask_outside(int32_t value) {
  if (graph_.overwritten_by[value] == StepGraph::never || asked_[value].unit >= 0) return;
  asked_[value].unit = unit_;
  copied_from_outside_.push_back(value);
}

void StepNeeds::ask(int32_t value, int32_t until) {
  if (graph_.maker(value) < 0) return ask_outside(value);
  Asked& asked = asked_[value];
  if (asked.unit != unit_) {
    asked = {unit_, until, is_given(value), -1};
    if (asked.given) needs_[unit_].given.push_back(value);
  }
  asked.until = std::max(asked.until, until);
}

bool StepNeeds::is_given(int32_t value) {
  if ((*keep_)[value] && units_.properly_around(units_.home(value), unit_)) return true;
  const int32_t maker = graph_.maker(value);
  if (units_[unit_].begin <= maker && maker < units_[unit_].end) return false;
  if (missing_ == MissingValues::kRefuse) {
    throw std::logic_error(
        "[memory plan] cuts: expected value " + std::to_string(value) + ", of record " +
        std::to_string(maker) + " (" + graph_.profile.records[maker].op +
        "), among what is kept, since the replay of records " +
        std::to_string(units_[unit_].begin) + " to " + std::to_string(units_[unit_].end - 1) +
        " needs it, got a plan without it. Report this.");
  }
  (*keep_)[value] = 1;
  return true;
}

/// Adds the unit's kept values to the slots of the groups that make them. A group's slots are
/// complete once the units in it have been walked.
void StepNeeds::hand_on_given(UnitNeeds& needs) {
  std::vector<int32_t>& groups = needs.given_groups;
  groups.clear();
  for (const int32_t v : needs.given) {
    const int32_t home = units_.home(v);
    if (kept_until_[v] < 0) {
      if (home == StepUnits::root) {
        kept_at_root_.push_back({v, 0});
      } else {
        group_slots_[home].push_back(v);
      }
    }
    kept_until_[v] = std::max(kept_until_[v], asked_[v].until);
    if (home != StepUnits::root) groups.push_back(home);
  }
  const auto outer_first = [&](int32_t a, int32_t b) { return units_.properly_around(a, b); };
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  std::sort(groups.begin(), groups.end(), outer_first);
}

}  // namespace remat::detail
