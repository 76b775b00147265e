// SPDX-License-Identifier: BSD-3-Clause

// The planner on random steps: its plans run as predicted, and no cuts beat its lower bound.
#include <remat/planner/memory_planner.h>

#include "damage/read_mutants.h"
#include "planner/step/random_step.h"
#include "planner/step/step_oracle.h"
#include "support/catch.h"

using remat::MemoryPlan;
using remat::MemoryPlanner;
using remat::StepCuts;
using remat::StepProfile;

namespace {

double step_us(const StepProfile& profile) {
  double sum = 0;
  for (const remat::StepRecord& record : profile.records)
    sum += record.forward_us + record.backward_us;
  return sum;
}

/// Checks all points of the frontier, each with its own peak as budget.
void check_plans(const MemoryPlanner& planner) {
  for (const remat::MemoryFrontierPoint& point : planner.frontier()) {
    const MemoryPlan plan = planner.plan(point.peak_bytes);
    const remat::test::OracleResult slow = remat::test::oracle(planner.profile(), plan.cuts);
    REQUIRE(plan.feasible);
    REQUIRE(slow.possible);
    REQUIRE(slow.peak_bytes == plan.predicted_peak_bytes);
    REQUIRE(plan.predicted_peak_bytes == point.peak_bytes);
    REQUIRE(plan.predicted_overhead == point.overhead);
    REQUIRE(plan.lower_bound <= plan.predicted_overhead);
    REQUIRE(MemoryPlan::from_json(plan.to_json(), planner.profile()).cuts.keep == plan.cuts.keep);
  }
}

TEST_CASE("Plans of random steps run as predicted, and no cuts beat the bound",
          "[memory_plan][fuzz]") {
  const uint64_t count = 1 + remat::test::from_environment("REMAT_FUZZ_N", 2000) / 5;
  const uint64_t shard = remat::test::from_environment("REMAT_FUZZ_SHARD", 0);
  remat::MemoryPlannerOptions options;
  options.evaluations = 400;
  for (uint64_t seed = shard * count; seed < (shard + 1) * count; ++seed) {
    INFO("seed " << seed);
    std::mt19937 random(static_cast<uint32_t>(seed));
    const StepProfile profile = remat::test::random_step(random);
    const MemoryPlanner planner(profile, options);
    REQUIRE(!planner.frontier().empty());
    check_plans(planner);
    for (int i = 0; i < 20; ++i) {
      const StepCuts cuts = remat::test::random_cuts(profile, true, random);
      const remat::StepSimulation result = remat::simulate_step(profile, cuts);
      const double overhead = result.rerun_us / step_us(profile);
      // The bound of a feasible plan is that of its budget.
      const MemoryPlan plan = planner.plan(result.peak_bytes);
      if (plan.feasible) REQUIRE(plan.lower_bound <= overhead + 1e-9);
    }
  }
}

}  // namespace
