// SPDX-License-Identifier: BSD-3-Clause

// Checking cuts before a tape is recorded; hashes and messages for the tape that a plan expects.
#include <remat/engine/cuts.h>

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <vector>

#include <remat/engine/expected_tape.h>
#include <remat/engine/hash_mix.h>
#include <remat/engine/offload_store.h>

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

std::string op_or_end(const std::string& op) {
  return op.empty() ? "the end of the function" : op;
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
  TORCH_CHECK_VALUE(
      !cuts.while_recorded || (cuts.positions.empty() && !cuts.keep && !cuts.expected), where,
      "cuts.while_recorded: expected no positions, keep and expected beside it, ",
      "got some. Leave them out.");
  if (cuts.keep) check_kept(*cuts.keep, where);
}

uint64_t ExpectedTape::hash_reads(std::string_view op, c10::ArrayRef<uint32_t> values) {
  return hash_reads(std::hash<std::string_view>{}(op), values);
}

uint64_t ExpectedTape::hash_reads(size_t name_hash, c10::ArrayRef<uint32_t> values) {
  uint64_t hash = name_hash;
  for (const uint32_t value : values) hash = hash_mix(hash, value);
  return hash;
}

uint64_t ExpectedTape::hash_makes(c10::ArrayRef<uint32_t> results,
                                  c10::ArrayRef<std::pair<uint32_t, uint32_t>> writes) {
  uint64_t hash = hash_mix(1, results.size());
  for (const uint32_t value : results) hash = hash_mix(hash, value);
  for (const auto& [before, after] : writes) hash = hash_mix(hash_mix(hash, before), after);
  return hash;
}

std::string TapeDifference::str() const {
  const std::string place = c10::str("record ", record, ", ", op_or_end(got), ", ");
  if (in_slot)
    return c10::str("expected the tensors that autograd saved then at ", place, "got others");
  if (most_bytes > 0) {
    return c10::str("expected ", most_bytes, " bytes of new memory or less up to ", place, "got ",
                    got_bytes);
  }
  return c10::str("expected ", op_or_end(expected), " as record ", record, ", got ", op_or_end(got),
                  expected == got ? " of other values" : "");
}

}  // namespace remat
