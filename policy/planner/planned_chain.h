// SPDX-License-Identifier: BSD-3-Clause

// A profile ready to be planned, with the names of its numbers; schedules as plans.
#pragma once

#include <functional>
#include <span>
#include <string>

#include <remat/planner/plan.h>
#include <remat/planner/profile.h>

#include <remat/planner/chain_model.h>
#include <remat/planner/schedule.h>
#include <remat/planner/split_chain.h>
#include "simulator.h"

namespace remat::detail {

struct PlannedChain {
  /// @throws std::invalid_argument as Profile::validate does
  PlannedChain(const Profile& from, OptionClass options, int exact_ops = 18);

  /// The named ops of a run or of one region.
  std::span<const ProfileOp> ops(const ScheduledRegion& region) const;
  std::span<const ProfileOp> ops(size_t position) const;
  /// The type that a region, or the region that it is a part of, has in the profile.
  const BlockType& original_type(size_t position) const;

  Profile original;
  SplitChain split;
  ChainModel model;
};

/// Table and groups. Costs are left out.
Plan to_plan(const PlannedChain& chain, const Schedule& schedule);

/// Adds times, peaks and the holdings at the peak, by simulation.
void add_costs(const PlannedChain& chain, const Schedule& schedule, Plan& plan);

/// Called as `fail(place, expected, got)` for the first thing that does not fit the chain. Must not
/// return.
using PlanFault = std::function<void(const std::string& place, const std::string& expected,
                                     const std::string& got)>;
Schedule to_schedule(const PlannedChain& chain, const Plan& plan, const PlanFault& fail);

}  // namespace remat::detail
