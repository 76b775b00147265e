// SPDX-License-Identifier: BSD-3-Clause

// Description of simulated cuts as a memory plan.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <remat/memory_plan/memory_plan.h>

#include "candidate_pool.h"
#include "step_graph.h"
#include "step_simulator.h"

namespace remat::detail {

std::vector<KeptResult> kept_results(const StepGraph& graph, const CutCandidate& candidate);

/// The plan of the simulator's last run, without budget, overhead, bounds and digest; `limit` is
/// filled as for an infeasible plan.
MemoryPlan describe(const StepGraph& graph, const StepSimulator& simulator, StepCuts cuts);

}  // namespace remat::detail
