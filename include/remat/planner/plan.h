// SPDX-License-Identifier: BSD-3-Clause

// A planner's result: the policy of every op, the groups of regions, and their cost.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <remat/policy/export.h>
#include <remat/policy/policy.h>

namespace remat {

struct PlanOp {
  std::string name;
  Policy policy = Policy::kSave;
};

/// One region of the chain. A region with more ops than the planner enumerates is cut at points
/// crossed by a single tensor; every part then has its own row.
struct PlanRow {
  int position = 0;    ///< Index of this row
  std::string region;  ///< Name of its block type
  int part = 0;        ///< Part of a region that was cut, from 0
  int run_first = 0;   ///< First of the rows that run as one region with this row
  int run_count = 1;   ///< Number of rows that run as that region; 1: this row runs alone
  std::vector<PlanOp> ops;
};

/// The rows of a group, `first` to `next` - 1, run forward and keep only the input of row `first`.
/// After all later rows have run forward and backward, the group runs again from that input. Groups
/// nest.
struct PlanGroup {
  int first = 0;
  int next = 0;
};

/// Copies are independent, and threads may read one plan at the same time.
struct REMAT_API Plan {
  std::string profile_digest;  ///< Profile::digest() of the planned profile
  bool feasible = false;  ///< False: no plan fits the budget, and the other members describe the
                          ///< plan that needs least memory
  int64_t budget_bytes = 0;
  double total_time_us = 0;          ///< Forward, backward and recomputation
  double overhead = 0;               ///< Total time / ideal time - 1
  int64_t simulated_peak_bytes = 0;  ///< Peak of the event-by-event simulation
  double lower_bound = 0;            ///< Overhead that no schedule beats
  int64_t least_budget_bytes = 0;    ///< The smallest budget that any plan fits
  std::vector<PlanRow> table;
  std::vector<PlanGroup> groups;  ///< Outer groups before inner ones
  std::string peak_region;        ///< Where the peak is, for example "region 12 'attn', backward"

  /// One JSON object, described by planner/chain/schema/plan.schema.json. In the JSON of an
  /// infeasible plan, unlike in this struct, table and groups are empty, and total_time, overhead,
  /// predicted_peak, simulated_peak, lower_bound and gap are null. There least_budget is the
  /// smallest budget that fits, and least_at is the place of the peak in that budget's plan.
  std::string to_json() const;
};

}  // namespace remat
