// SPDX-License-Identifier: BSD-3-Clause

// Plans of models: within their budgets, monotone, and made fast enough.
#include <remat/planner/memory_planner.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "planner/step/step_models.h"
#include "support/catch.h"

using remat::MemoryPlan;
using remat::MemoryPlanner;
using remat::StepProfile;

namespace {

std::vector<StepProfile> models() {
  return {remat::test::mlp_step(12),        remat::test::transformer_step(8),
          remat::test::unet_step(4),        remat::test::resnet_step(8),
          remat::test::tied_weight_step(6), remat::test::encoder_decoder_step(4)};
}

int64_t share(const StepProfile& profile, double of) {
  return static_cast<int64_t>(static_cast<double>(profile.plain_peak_bytes) * of);
}

TEST_CASE("Plans stay within their budgets, and more budget never makes them slower",
          "[memory_plan]") {
  for (const StepProfile& profile : models()) {
    const MemoryPlanner planner(profile);
    double last = 1e300;
    for (int percent = 1; percent <= 110; ++percent) {
      INFO(profile.name << " " << percent << " %");
      const int64_t budget = share(profile, percent / 100.0);
      const MemoryPlan plan = planner.plan(budget);
      CHECK(plan.budget_bytes == budget);
      CHECK(plan.feasible == (budget >= plan.least_budget_bytes));
      if (!plan.feasible) {
        CHECK(plan.predicted_peak_bytes == plan.least_budget_bytes);
        continue;
      }
      CHECK(plan.predicted_peak_bytes <= budget);
      CHECK(plan.predicted_overhead <= last);
      CHECK(plan.lower_bound <= plan.predicted_overhead);
      last = plan.predicted_overhead;
    }
    CHECK(last == 0);
  }
}

TEST_CASE("A plan's prediction equals the simulation of its cuts", "[memory_plan]") {
  for (const StepProfile& profile : models()) {
    const MemoryPlanner planner(profile);
    double step_us = 0;
    for (const remat::StepRecord& record : profile.records)
      step_us += record.forward_us + record.backward_us;
    for (const double of : {0.2, 0.35, 0.5, 0.8, 1.0}) {
      const MemoryPlan plan = planner.plan(share(profile, of));
      const remat::StepSimulation result = remat::simulate_step(profile, plan.cuts);
      CHECK(result.peak_bytes == plan.predicted_peak_bytes);
      CHECK(std::abs(result.rerun_us / step_us - plan.predicted_overhead) < 1e-9);
      REQUIRE(plan.ops.size() == profile.records.size());
      for (size_t j = 0; j < plan.ops.size(); ++j) CHECK(plan.ops[j].runs == result.runs[j]);
      int64_t highest = 0;
      for (const remat::MemoryPlanPhase& phase : plan.phases)
        highest = std::max(highest, phase.peak_bytes);
      CHECK(highest == plan.predicted_peak_bytes);
    }
  }
}

TEST_CASE("A peak between forward and backward is named", "[memory_plan]") {
  StepProfile profile = remat::test::mlp_step(4);
  const int64_t most = MemoryPlanner(profile).frontier().back().peak_bytes;
  profile.gap_bytes = most;
  const MemoryPlan plan = MemoryPlanner(profile).plan(most);
  CHECK_FALSE(plan.feasible);
  CHECK(plan.peak_at == "after the forward");
  REQUIRE(plan.phases.size() > 1);
  CHECK(plan.phases[1].name == "after the forward");
  CHECK(plan.phases[1].peak_bytes == plan.predicted_peak_bytes);
  const std::string fixed = std::to_string(most + profile.end_bytes);
  CHECK(plan.limit.rfind("after the forward: " + fixed + " of ", 0) == 0);
}

TEST_CASE("Plans are as fast as the chain planner promises", "[memory_plan]") {
  const StepProfile profile = remat::test::transformer_step(12);
  const MemoryPlanner planner(profile);
  CHECK(planner.plan(share(profile, 0.5)).predicted_overhead < 0.10);
  CHECK(planner.plan(share(profile, 0.2)).predicted_overhead < 0.25);
  CHECK(planner.frontier().front().peak_bytes < share(profile, 0.13));
}

TEST_CASE("A deep model is cut finely enough for a twentieth of its memory", "[memory_plan]") {
  const StepProfile profile = remat::test::transformer_step(48);
  const MemoryPlanner planner(profile);
  CHECK(planner.frontier().front().peak_bytes < share(profile, 0.05));
  CHECK(planner.plan(share(profile, 0.1)).predicted_overhead < 0.26);
  CHECK(planner.plan(share(profile, 0.1)).predicted_overhead >
        planner.plan(share(profile, 0.1)).lower_bound);
  CHECK(planner.plan(share(profile, 0.5)).predicted_overhead <
        planner.plan(share(profile, 0.5)).lower_bound + 0.005);
  CHECK(planner.evaluations() <= remat::MemoryPlannerOptions().evaluations);
}

TEST_CASE("A plan uses its budget", "[memory_plan]") {
  for (const StepProfile& profile : models()) {
    const MemoryPlanner planner(profile);
    for (int percent = 45; percent <= 100; percent += 5) {
      INFO(profile.name << " " << percent << " %");
      const MemoryPlan plan = planner.plan(share(profile, percent / 100.0));
      if (plan.feasible) CHECK(plan.predicted_peak_bytes >= share(profile, percent / 106.0));
    }
  }
}

TEST_CASE("The same profile gives the same plan", "[memory_plan]") {
  const StepProfile profile = remat::test::encoder_decoder_step(3);
  const int64_t budget = share(profile, 0.4);
  CHECK(MemoryPlanner(profile).plan(budget).to_json() ==
        MemoryPlanner(profile).plan(budget).to_json());
}

TEST_CASE("An infeasible budget says what stands in the way", "[memory_plan]") {
  const StepProfile profile = remat::test::resnet_step(4);
  const MemoryPlanner planner(profile);
  const MemoryPlan plan = planner.plan(1000);
  CHECK(!plan.feasible);
  CHECK(plan.least_budget_bytes == planner.frontier().front().peak_bytes);
  CHECK_THAT(plan.limit, ContainsSubstring("at backward, aten::"));
  CHECK_THAT(plan.limit, ContainsSubstring("bytes are gradients and workspace"));
  CHECK_THAT(plan.table(), ContainsSubstring("infeasible: the least is "));
  CHECK(planner.plan(plan.least_budget_bytes).feasible);
  CHECK(planner.plan(plan.least_budget_bytes).limit.empty());
  CHECK_THROWS_WITH(planner.plan(-1),
                    "[memory plan] budget: expected 0 bytes or more, got -1. Give the bytes that a "
                    "step may take.");
}

TEST_CASE("Statistics of norms are kept rather than made again", "[memory_plan]") {
  // At half of the memory no layer norm runs again just for its two statistics.
  const StepProfile profile = remat::test::transformer_step(8);
  const MemoryPlan plan = MemoryPlanner(profile).plan(share(profile, 0.5));
  for (size_t j = 0; j < plan.ops.size(); ++j) {
    if (plan.ops[j].op != "aten::native_layer_norm" || plan.ops[j].runs > 0) continue;
    CHECK(plan.ops[j].kept_bytes >= 2 * 4 * 512 * 4);
  }
}

TEST_CASE("A step without backward has one plan", "[memory_plan]") {
  StepProfile profile = remat::test::mlp_step(2);
  profile.slots.clear();
  profile.nodes.clear();
  const MemoryPlanner planner(profile);
  REQUIRE(planner.frontier().size() == 1);
  CHECK(planner.frontier().front().overhead == 0);
  CHECK(planner.plan(profile.plain_peak_bytes).feasible);
}

TEST_CASE("Values that a group's replay recomputes are not counted as kept", "[memory_plan]") {
  const StepProfile profile = remat::test::transformer_step(12);
  bool has_groups = false;
  for (const double of_peak : {0.15, 0.2, 0.3, 0.5}) {
    const MemoryPlan plan = MemoryPlanner(profile).plan(share(profile, of_peak));
    int64_t kept_bytes = 0;
    for (const remat::MemoryPlanOp& op : plan.ops) kept_bytes += op.kept_bytes;
    CHECK(kept_bytes > 0);
    CHECK(kept_bytes <= remat::simulate_step(profile, plan.cuts).kept_bytes + profile.end_bytes);
    has_groups |= !plan.cuts.groups.empty();
  }
  CHECK(has_groups);
}

TEST_CASE("explain says what becomes of a module's ops", "[memory_plan]") {
  const StepProfile profile = remat::test::transformer_step(12);
  const MemoryPlan plan = MemoryPlanner(profile).plan(share(profile, 0.3));
  const std::string one = plan.explain("h.1");
  CHECK_THAT(one, ContainsSubstring("h.1.attn: keeps "));
  CHECK_THAT(one, ContainsSubstring("h.1.mlp: keeps "));
  CHECK_THAT(one, !ContainsSubstring("h.10"));
  CHECK_THAT(plan.explain("aten::nll_loss_forward"), ContainsSubstring("head: keeps "));
  CHECK_THROWS_WITH(plan.explain("h.12"),
                    "[memory plan] explain: expected a module, named call or op of the step, got "
                    "'h.12'. explain(\"\") lists all.");
  CHECK_THAT(plan.table(), ContainsSubstring("  forward: "));
}

}  // namespace
