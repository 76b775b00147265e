// SPDX-License-Identifier: BSD-3-Clause

// The cuts with which a region runs a plan.
#pragma once

#include <memory>

#include <remat/engine/export.h>
#include <remat/planner/memory_plan.h>
#include <remat/planner/step_cuts.h>
#include <remat/planner/step_profile.h>

namespace remat {

struct PlannedCuts;

/// Cuts for CheckpointOptions::plan, with replay = kTape, that make the measured function run as
/// planned. A step that runs other ops or makes more memory leaves the plan at the first
/// difference, and is cut every few MB from there on: see `PlannedCuts`. For a plan with
/// OFFLOAD, CheckpointOptions::offload_store must be the engine that the plan was made for. Any
/// thread. Throws ValueError for an infeasible plan.
REMAT_API std::shared_ptr<PlannedCuts> cuts_of(const MemoryPlan& plan);

/// Cuts at planned positions, without checking the ops. A step with other ops is refused only when
/// its function returns.
REMAT_API std::shared_ptr<PlannedCuts> cuts_of(const StepCuts& planned);

/// Cuts at planned positions, with the ops that are expected there. A step with other ops than
/// `measured` leaves the cuts at the first difference, and is cut every few MB from there on.
REMAT_API std::shared_ptr<PlannedCuts> cuts_of(const StepCuts& planned,
                                               const StepProfile& measured);

}  // namespace remat
