// SPDX-License-Identifier: BSD-3-Clause

// Reads a schedule from the rows of a plan, each of which must fit the chain.
#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "planned_chain.h"

namespace remat::detail {
namespace {

std::string pair_text(int a, int b) {
  return "[" + std::to_string(a) + ", " + std::to_string(b) + "]";
}

/// Reads the rows of one region, usually one row. Calls `fail` for the first that does not fit.
class RegionReader {
 public:
  RegionReader(const PlannedChain& chain, const Plan& plan, size_t first, const PlanFault& fail)
      : chain_(chain), plan_(plan), fail_(fail) {
    region_.first = first;
    region_.count = static_cast<size_t>(std::max(0, plan.table[first].run_count));
    region_.type = type();
  }

  ScheduledRegion read() {
    for (size_t position = region_.first; position < region_.first + region_.count; ++position) {
      check_place(position);
      read_ops(position);
    }
    check_reruns();
    return std::move(region_);
  }

 private:
  static std::string place(size_t position) { return "table[" + std::to_string(position) + "]"; }
  const Block& block() const { return chain_.model.types[region_.type]; }

  int type() const {
    if (region_.count == 1) return chain_.model.chain[region_.first];
    const auto& merges = chain_.model.merges;
    const auto merge = std::find_if(merges.begin(), merges.end(), [&](const Merge& candidate) {
      return candidate.pattern.size() == region_.count &&
             chain_.model.matches(candidate, region_.first, chain_.model.length() - 1);
    });
    if (merge == merges.end()) {
      fail_(place(region_.first), "regions that the profile lets run as one",
            std::to_string(region_.count) + " rows");
    }
    return merge->type;
  }

  void check_place(size_t position) const {
    const auto text = [](int at, const std::string& name, int part) {
      return "region " + std::to_string(at) + " '" + name + "', part " + std::to_string(part);
    };
    const PlanRow& row = plan_.table[position];
    const std::string expected =
        text(static_cast<int>(position), chain_.original_type(position).name,
             chain_.split.parts[position].part);
    const std::string got = text(row.position, row.region, row.part);
    if (got != expected) fail_(place(position), expected, got);
    const std::string run =
        pair_text(static_cast<int>(region_.first), static_cast<int>(region_.count));
    const std::string row_run = pair_text(row.run_first, row.run_count);
    if (row_run != run) fail_(place(position) + ".run", run, row_run);
  }

  void read_ops(size_t position) {
    const PlanRow& row = plan_.table[position];
    const std::string here = place(position) + ".ops";
    const std::span<const ProfileOp> ops = chain_.ops(position);
    if (row.ops.size() != ops.size())
      fail_(here, std::to_string(ops.size()) + " ops", std::to_string(row.ops.size()));
    for (size_t i = 0; i < ops.size(); ++i, ++next_op_) {
      if (row.ops[i].name != ops[i].name)
        fail_(here, "op '" + ops[i].name + "'", "'" + row.ops[i].name + "'");
      region_.rerun[next_op_] = row.ops[i].policy == Policy::kRecompute;
    }
  }

  void check_reruns() const {
    if (without_dead_ops(block(), region_.rerun) == region_.rerun) return;
    fail_(place(region_.first) + ".ops",
          "RECOMPUTE only of ops whose results backward or an op that runs again needs", "others");
  }

  const PlannedChain& chain_;
  const Plan& plan_;
  const PlanFault& fail_;
  ScheduledRegion region_;
  size_t next_op_ = 0;  // index in the region
};

std::vector<ScheduledGroup> read_groups(const Plan& plan, size_t length, const PlanFault& fail) {
  std::vector<ScheduledGroup> groups;
  for (size_t i = 0; i < plan.groups.size(); ++i) {
    const PlanGroup& group = plan.groups[i];
    if (group.first < 0 || group.next <= group.first || group.next >= static_cast<int>(length)) {
      fail("groups[" + std::to_string(i) + "]", "0 <= first < next < " + std::to_string(length),
           pair_text(group.first, group.next));
    }
    groups.push_back({static_cast<size_t>(group.first), static_cast<size_t>(group.next)});
  }
  return groups;
}

}  // namespace

Schedule to_schedule(const PlannedChain& chain, const Plan& plan, const PlanFault& fail) {
  const size_t length = chain.model.length();
  if (plan.table.size() != length) {
    fail("table", std::to_string(length) + " rows, one per region",
         std::to_string(plan.table.size()));
  }
  Schedule schedule;
  for (size_t first = 0; first < length; first += schedule.regions.back().count)
    schedule.regions.push_back(RegionReader(chain, plan, first, fail).read());
  schedule.groups = read_groups(plan, length, fail);
  try {
    events_of(schedule, length);
  } catch (const std::invalid_argument& error) {
    fail("groups", "groups that nest around whole runs", error.what());
  }
  return schedule;
}

}  // namespace remat::detail
