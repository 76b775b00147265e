// SPDX-License-Identifier: BSD-3-Clause

// A profile ready to be planned, with the names that its numbers stand for, and schedules as plans.
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
  /// Name of the original region
  const std::string& region_name(size_t position) const;

  Profile original;
  SplitProfile split;
  ChainModel model;
};

/// Of the tensor that an op of a type puts out; `index` as in its Block.
const std::string& tensor_name(const BlockType& type, int index);

/// Table and groups. Costs are left out.
Plan to_plan(const PlannedChain& chain, const Schedule& schedule);

/// Times, peaks and what is held at the peak, by replay.
void add_costs(const PlannedChain& chain, const Schedule& schedule, Plan& plan);

/// Calls `fail(place, expected, got)`, which must not return, for the first thing that does not fit
/// the chain.
using PlanFault = std::function<void(const std::string& place, const std::string& expected,
                                     const std::string& got)>;
Schedule to_schedule(const PlannedChain& chain, const Plan& plan, const PlanFault& fail);

}  // namespace remat::detail
