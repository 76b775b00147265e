// SPDX-License-Identifier: BSD-3-Clause

// Finds the first fault of a step's cuts.
#include <algorithm>
#include <cstdint>

#include "step_fault.h"

namespace remat::detail {

namespace {

using Fault = std::optional<StepFault>;
using Group = std::pair<int32_t, int32_t>;

constexpr const char* plan_again = "Plan for this step.";

std::string cuts_item(const char* list, size_t index) {
  return std::string(list) + "[" + std::to_string(index) + "]";
}

std::string group_text(const Group& group) {
  return "[" + std::to_string(group.first) + ", " + std::to_string(group.second) + "]";
}

Fault check_positions(const StepCuts& cuts, int32_t records) {
  int32_t last = 0;
  for (size_t i = 0; i < cuts.positions.size(); ++i) {
    const int32_t position = cuts.positions[i];
    if (position > last && position < records) {
      last = position;
      continue;
    }
    return StepFault{
        cuts_item("positions", i),
        "a record after " + std::to_string(last) + " and before " + std::to_string(records),
        std::to_string(position), plan_again};
  }
  return std::nullopt;
}

bool apart_or_nested(const Group& a, const Group& b) {
  const bool apart = a.second <= b.first || b.second <= a.first;
  const auto inside = [](const Group& x, const Group& y) {
    return y.first <= x.first && x.second <= y.second && x != y;
  };
  return apart || inside(a, b) || inside(b, a);
}

Fault check_groups(const StepCuts& cuts) {
  const auto segments = static_cast<int32_t>(cuts.positions.size()) + 1;
  for (size_t i = 0; i < cuts.groups.size(); ++i) {
    const Group& group = cuts.groups[i];
    if (group.first < 0 || group.second > segments || group.second - group.first < 2) {
      return StepFault{cuts_item("groups", i),
                       "two or more of " + std::to_string(segments) + " segments",
                       group_text(group), plan_again};
    }
    for (size_t k = 0; k < i; ++k) {
      if (apart_or_nested(group, cuts.groups[k])) continue;
      return StepFault{cuts_item("groups", i),
                       "a group inside of " + group_text(cuts.groups[k]) + ", around it or apart",
                       group_text(group), plan_again};
    }
  }
  return std::nullopt;
}

}  // namespace

Fault find_fault(const StepCuts& cuts, const StepProfile& profile) {
  if (Fault fault = check_positions(cuts, static_cast<int32_t>(profile.records.size())))
    return fault;
  if (Fault fault = check_groups(cuts)) return fault;
  for (size_t i = 0; i < cuts.keep.size(); ++i) {
    const KeptResult& kept = cuts.keep[i];
    if (kept.record >= 0 && kept.record < static_cast<int32_t>(profile.records.size())) {
      const StepRecord& record = profile.records[kept.record];
      const size_t results = record.makes.size() + record.writes.size();
      if (kept.result >= 0 && static_cast<size_t>(kept.result) < results) continue;
    }
    return StepFault{
        cuts_item("keep", i), "a record and one of its results",
        "record " + std::to_string(kept.record) + ", result " + std::to_string(kept.result),
        plan_again};
  }
  return std::nullopt;
}

}  // namespace remat::detail
