// SPDX-License-Identifier: BSD-3-Clause

// A profile ready for planning, with the names behind its numbers, and conversions between
// schedules and plans.
#pragma once

#include <functional>
#include <string>

#include <remat/planner/plan.h>
#include <remat/planner/profile.h>

#include "chain_model.h"
#include "schedule.h"
#include "simulator.h"
#include "split_regions.h"

namespace remat::detail {

struct PlannedChain {
  /// @throws std::invalid_argument as Profile::validate does
  PlannedChain(const Profile& from, OptionClass options, int exact_ops = 18);

  /// The block type that names the ops and tensors of a run.
  const BlockType& names(const ScheduledRegion& region) const;
  const BlockType& names(size_t position) const {
    return split.profile.block_types[split.profile.chain[position]];
  }
  /// Name of the original region.
  const std::string& region_name(size_t position) const;

  Profile original;
  SplitProfile split;
  ChainModel model;
};

/// Name of a tensor of a block type; `index` as in its Block.
const std::string& tensor_name(const BlockType& type, int index);

/// A plan with table and groups, without costs.
Plan to_plan(const PlannedChain& chain, const Schedule& schedule);

/// Adds times, peaks and the holdings at the peak, by simulation.
void add_costs(const PlannedChain& chain, const Schedule& schedule, Plan& plan);

/// Called as `fail(place, expected, got)` for the first thing that does not fit the chain. Must not
/// return.
using PlanFault = std::function<void(const std::string& place, const std::string& expected,
                                     const std::string& got)>;
Schedule to_schedule(const PlannedChain& chain, const Plan& plan, const PlanFault& fail);

}  // namespace remat::detail
