// SPDX-License-Identifier: BSD-3-Clause

// Checking the cuts of a region before its tape is recorded.
#include <remat/engine/cuts.h>

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <tuple>
#include <vector>

namespace remat {
namespace {

std::string str(const Cuts::Group& group) {
  return c10::str("{", group.begin, ", ", group.end, "}");
}

bool cross(const Cuts::Group& a, const Cuts::Group& b) {
  const bool apart = a.end <= b.begin || b.end <= a.begin;
  const bool inside =
      (a.begin >= b.begin && a.end <= b.end) || (b.begin >= a.begin && b.end <= a.end);
  return !apart && !inside;
}

void check_groups(const Cuts& cuts, const std::string& where) {
  for (const auto i : c10::irange(cuts.groups.size())) {
    const Cuts::Group& group = cuts.groups[i];
    TORCH_CHECK_VALUE(group.begin + 1 < group.end && group.end <= cuts.segment_count(), where,
                      "cuts.groups[", i, "]: expected two or more of the ", cuts.segment_count(),
                      " segments, got ", str(group), ". Give {first, last + 1}.");
    for (const auto j : c10::irange(i)) {
      const Cuts::Group& other = cuts.groups[j];
      TORCH_CHECK_VALUE(!cross(group, other), where, "cuts.groups[", i,
                        "]: expected a group inside of cuts.groups[", j,
                        "], around it or apart, got ", str(group), " across ", str(other), ".");
      TORCH_CHECK_VALUE(group.begin != other.begin || group.end != other.end, where, "cuts.groups[",
                        i, "]: expected each group once, got ", str(group),
                        " again. Leave it out.");
    }
  }
}

void check_kept(const std::vector<Cuts::Kept>& keep, const std::string& where) {
  for (const auto i : c10::irange(keep.size())) {
    const Cuts::Kept& kept = keep[i];
    TORCH_CHECK_VALUE(kept.policy != Policy::kRecompute, where, "cuts.keep[", i,
                      "]: expected SAVE or OFFLOAD, got RECOMPUTE. Leave it out.");
    if (i == 0) continue;
    const Cuts::Kept& last = keep[i - 1];
    TORCH_CHECK_VALUE(std::tie(last.record, last.result) < std::tie(kept.record, kept.result),
                      where, "cuts.keep[", i, "]: expected a value after result ", last.result,
                      " of record ", last.record, ", got result ", kept.result, " of record ",
                      kept.record, ". Give each value once, by record and result.");
  }
}

}  // namespace

void check_cuts(const Cuts& cuts, const std::string& where) {
  size_t last = 0;
  for (const auto i : c10::irange(cuts.positions.size())) {
    TORCH_CHECK_VALUE(cuts.positions[i] > last, where, "cuts.positions[", i,
                      "]: expected a record after ", last, ", got ", cuts.positions[i],
                      ". Give the records that begin a segment, in order.");
    last = cuts.positions[i];
  }
  TORCH_CHECK_VALUE(cuts.policies.empty() || cuts.policies.size() == cuts.segment_count(), where,
                    "cuts.policies: expected none or one for each of the ", cuts.segment_count(),
                    " segments, got ", cuts.policies.size(),
                    ". Use null for segments without one.");
  check_groups(cuts, where);
  if (cuts.keep) check_kept(*cuts.keep, where);
}

}  // namespace remat
