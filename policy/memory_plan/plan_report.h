// SPDX-License-Identifier: BSD-3-Clause

// Puts simulated cuts into the words and rows of a memory plan.
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

/// Everything but budget, overhead, bounds and digest; `limit` as for an infeasible plan. Of the
/// simulator's last run.
MemoryPlan describe(const StepGraph& graph, const StepSimulator& simulator, StepCuts cuts);

}  // namespace remat::detail
