// SPDX-License-Identifier: BSD-3-Clause

// What a planner decides: the policy of every op, the groups of regions, and what that costs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <remat/planner/profile.h>
#include <remat/policy/export.h>
#include <remat/policy/policy.h>

namespace remat {

struct PlanOp {
  std::string name;
  Policy policy = Policy::kSave;
};

/// One region of the chain. A region with more ops than the planner tries out is cut where a single
/// tensor passes; then every part has a row of its own.
struct PlanRow {
  int position = 0;    ///< Counts rows.
  std::string region;  ///< Name of its block type
  int part = 0;        ///< Of a region that was cut, from 0
  int run_first = 0;   ///< First row of those that run as one region with this one
  int run_count = 1;   ///< How many these are; 1: it runs alone
  std::vector<PlanOp> ops;
};

/// Rows first .. next - 1 run forward keeping only the input of the first; what follows runs, its
/// backward too; then these run from that input. Groups nest.
struct PlanGroup {
  int first = 0;
  int next = 0;
};

/// Something in memory at the moment of the peak.
struct PeakHolding {
  std::string
      what;  ///< "tensor", "gradient", "region input", "gradient of region input", "workspace"
  int position = 0;  ///< Row
  std::string region;
  std::string slot;  ///< Tensor, op for a workspace, "in" for a region's input
  int64_t bytes = 0;
};

/// A plain value: copies are independent, and threads may read one at the same time.
struct REMAT_API Plan {
  std::string profile_digest;  ///< Profile::digest() of what it was made for
  bool feasible =
      false;  ///< false: no plan fits the budget; what follows describes the one that needs least.
  int64_t budget_bytes = 0;
  double total_time_us = 0;  ///< Forward, backward and what runs again
  double overhead = 0;       ///< total time / ideal time - 1
  int64_t predicted_peak_bytes = 0;
  int64_t simulated_peak_bytes = 0;  ///< Peak of the event-by-event simulation
  double lower_bound = 0;            ///< Overhead that no schedule beats
  double gap = 0;          ///< overhead - lower_bound
  int64_t least_budget_bytes = 0;  ///< The least that any plan of the class fits into
  std::vector<PlanRow> table;
  std::vector<PlanGroup> groups;  ///< Outer before inner ones
  std::string peak_region;        ///< "region 12 'attn', backward": the op's that has the peak
  std::vector<PeakHolding> held;  ///< At the peak, the largest first

  /// One JSON object, described by policy/planner/schema/plan.schema.json. Of an infeasible plan
  /// table and groups are empty, and total_time, overhead, predicted_peak, simulated_peak,
  /// lower_bound and gap are null; least_budget, least_at and held say what stands in the way.
  std::string to_json() const;

  /// Reads a plan and replays it on the profile: what it says of times and bytes must come out.
  /// What only planning can tell is taken as the text says it, if that is possible: least_budget,
  /// lower_bound, and all of an infeasible plan. Planner::read_plan compares that as well.
  /// @throws std::invalid_argument `[plan] source:line: place: expected ..., got .... What to do.`
  static Plan from_json(std::string_view text, const Profile& profile,
                        const std::string& source = "plan");
};

}  // namespace remat
