// SPDX-License-Identifier: BSD-3-Clause

// Checking the cuts of a region before its tape is recorded.
#include <remat/tape/cuts.h>

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <tuple>
#include <vector>

#include <remat/tape/offload_store.h>

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

/// True if any two groups are nested or disjoint.
bool are_nested(std::vector<Cuts::Group> groups) {
  std::sort(groups.begin(), groups.end(), [](const Cuts::Group& a, const Cuts::Group& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::vector<Cuts::Group> open;  // The innermost is last.
  for (const Cuts::Group& group : groups) {
    while (!open.empty() && open.back().end <= group.begin) open.pop_back();
    const bool is_again =
        !open.empty() && open.back().begin == group.begin && open.back().end == group.end;
    if (is_again || (!open.empty() && open.back().end < group.end)) return false;
    open.push_back(group);
  }
  return true;
}

void check_groups(const Cuts& cuts, const std::string& where) {
  const bool nested = are_nested(cuts.groups);
  for (const auto i : c10::irange(cuts.groups.size())) {
    const Cuts::Group& group = cuts.groups[i];
    TORCH_CHECK_VALUE(group.begin + 1 < group.end && group.end <= cuts.segment_count(), where,
                      "cuts.groups[", i, "]: expected two or more of the ", cuts.segment_count(),
                      " segments, got ", str(group), ". Give {first, last + 1}.");
    for (const auto j : c10::irange(nested ? 0 : i)) {  // Finds the pair for the message.
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

void check_room(const OffloadTerms& planned, const OffloadTerms& store, const std::string& where) {
  const char* const advice =
      ": what has no room would stay. Use the store that it was planned with, or plan with this "
      "one.";
  TORCH_CHECK_VALUE(store.max_bytes >= planned.max_bytes, where,
                    "offload_store: expected max_bytes of at least ", planned.max_bytes,
                    ", as the plan was made for, got ", store.max_bytes, advice);
  TORCH_CHECK_VALUE(store.places.size() >= planned.places.size(), where, "offload_store: expected ",
                    planned.places.size(), " memories, as the plan was made for, got ",
                    store.places.size(), advice);
  for (const auto i : c10::irange(planned.places.size())) {
    TORCH_CHECK_VALUE(store.places[i].max_bytes >= planned.places[i].max_bytes, where,
                      "offload_store: expected ", store.places[i].name, " of at least ",
                      planned.places[i].max_bytes, " bytes, as the plan was made for, got ",
                      store.places[i].max_bytes, advice);
  }
}

}  // namespace

void check_offload(const Cuts& cuts, const OffloadStore& store, const std::string& where) {
  const std::optional<OffloadTerms> limits = store.limits();
  if (!cuts.offload || !limits) return;
  const auto check = [&](int64_t OffloadTerms::*limit, const char* name) {
    TORCH_CHECK_VALUE((*limits).*limit <= (*cuts.offload).*limit, where, "offload_store: expected ",
                      name, " of at most ", (*cuts.offload).*limit,
                      " bytes, as the plan was made for, got ", (*limits).*limit,
                      ": the step would take more than was planned. Use the store that it was "
                      "planned with, or plan with this one.");
  };
  check(&OffloadTerms::min_bytes, "min_bytes");
  check(&OffloadTerms::prefetch_bytes, "prefetch_bytes");
  check(&OffloadTerms::max_leaving_bytes, "max_leaving_bytes");
  check_room(*cuts.offload, *limits, where);
}

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
  TORCH_CHECK_VALUE(!cuts.while_recorded || (cuts.positions.empty() && !cuts.keep && !cuts.expected),
                    where, "cuts.while_recorded: expected no positions, keep and expected beside it, ",
                    "got some. Leave them out.");
  if (cuts.keep) check_kept(*cuts.keep, where);
}

}  // namespace remat
