// SPDX-License-Identifier: BSD-3-Clause

// Plans that offload kept values: peaks and waits counted by hand, models, files, terms.
#include <remat/planner/memory_planner.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "planner/step/step_models.h"
#include "support/catch.h"

using remat::MemoryPlan;
using remat::MemoryPlanner;
using remat::OffloadTerms;
using remat::StepCuts;
using remat::StepProfile;
using remat::StepSimulation;
using remat::test::line_step;

namespace {

/// A segment for each record; all values that cross are offloaded.
StepCuts moved(int32_t records) {
  StepCuts cuts;
  for (int32_t j = 1; j < records; ++j) {
    cuts.positions.push_back(j);
    cuts.keep.push_back({j - 1, 0, remat::Policy::kOffload});
  }
  return cuts;
}

/// A link of one byte per microsecond.
OffloadTerms slow_terms(int64_t leaving, int64_t prefetch) {
  return {.places = {{.out_gbps = 1e-3, .in_gbps = 1e-3}},
          .prefetch_bytes = prefetch,
          .max_leaving_bytes = leaving};
}

TEST_CASE("An offloaded value is in memory until it is sent, and again once a replay fetched it",
          "[memory_plan]") {
  // Value 1 leaves when value 3 is put, value 2 when value 4 is put. Values 3 and 4 do not leave,
  // since nothing is put after the program has released them.
  const StepSimulation all = remat::simulate_step(line_step(5), moved(5));
  CHECK(all.peak_bytes == 40);
  CHECK(all.offloaded_bytes == 0);
  const StepSimulation result = remat::simulate_step(line_step(5), moved(5), slow_terms(0, 0));
  CHECK(result.offloaded_bytes == 20);
  CHECK(result.forward_peak_bytes == 10);
  CHECK(result.kept_bytes == 20);
  CHECK(result.peak_bytes == 20);
  CHECK(result.waited_us == 40);  // for each copy, as no copy may overlap with compute
}

TEST_CASE("Bytes that may be in flight count, whatever the link does", "[memory_plan]") {
  const StepSimulation result = remat::simulate_step(line_step(5), moved(5), slow_terms(10, 5));
  CHECK(result.forward_peak_bytes == 20);
  CHECK(result.peak_bytes == 35);
  const StepSimulation loose = remat::simulate_step(line_step(5), moved(5), slow_terms(20, 20));
  CHECK(loose.peak_bytes == 40);  // no more than if nothing moves
  CHECK(loose.waited_us == 0);    // The value has not left when it is asked for, so it stays.
}

TEST_CASE("Copies are hidden by what is computed beside them", "[memory_plan]") {
  StepProfile profile = line_step(5);
  for (remat::StepRecord& record : profile.records) record.forward_us = 10;
  for (remat::StepNode& node : profile.nodes) node.us = 10;
  CHECK(remat::simulate_step(profile, moved(5), slow_terms(10, 10)).waited_us == 0);
  for (remat::StepNode& node : profile.nodes) node.us = 4;
  // Value 2's fetch begins when value 4 is needed, 8 us before its replay; value 1's follows it.
  CHECK(remat::simulate_step(profile, moved(5), slow_terms(10, 10)).waited_us == 2 + 6);
  profile.other_us = 50;  // the time between ops of the forward
  CHECK(remat::simulate_step(profile, moved(5), slow_terms(0, 10)).waited_us == 10 + 10 + 8);
}

TEST_CASE("A memory that is full and storages that are small stay", "[memory_plan]") {
  const auto offloaded = [](const OffloadTerms& terms) {
    return remat::simulate_step(line_step(5), moved(5), terms).offloaded_bytes;
  };
  OffloadTerms terms = slow_terms(0, 0);
  terms.places[0].max_bytes = 15;
  CHECK(offloaded(terms) == 10);
  terms.places.push_back({.name = "disk", .out_gbps = 1e-3, .in_gbps = 1e-3, .max_bytes = 10});
  CHECK(offloaded(terms) == 20);
  terms.max_bytes = 10;
  CHECK(offloaded(terms) == 10);
  terms = slow_terms(0, 0);
  terms.min_bytes = 11;
  CHECK(offloaded(terms) == 0);
}

OffloadTerms link(double gbps, int64_t window) {
  return {.places = {{.out_gbps = gbps, .in_gbps = gbps, .latency_us = 5}},
          .prefetch_bytes = window,
          .max_leaving_bytes = window};
}

std::vector<StepProfile> models_that_move() {
  return {remat::test::transformer_step(8), remat::test::encoder_decoder_step(4)};
}

TEST_CASE("Nothing moves where making it again is faster", "[memory_plan]") {
  const StepProfile profile = remat::test::mlp_step(12);
  const MemoryPlanner planner(profile, {.offload = link(25, profile.plain_peak_bytes / 50)});
  for (int percent = 20; percent <= 100; percent += 10)
    CHECK(planner.plan(profile.plain_peak_bytes * percent / 100).offloaded_bytes == 0);
}

TEST_CASE("A link never makes a plan slower, and a fast one makes small budgets cheap",
          "[memory_plan]") {
  for (const StepProfile& profile : models_that_move()) {
    const MemoryPlanner without(profile);
    const int64_t window = profile.plain_peak_bytes / 50;
    const MemoryPlanner fast(profile, {.offload = link(25, window)});
    double saved = 0;
    for (int percent = 10; percent <= 100; percent += 10) {
      INFO(profile.name << " " << percent << " %");
      const int64_t budget = profile.plain_peak_bytes * percent / 100;
      const MemoryPlan plan = fast.plan(budget);
      const MemoryPlan alone = without.plan(budget);
      CHECK(plan.offload == link(25, window));
      CHECK(alone.offload.places.empty());
      CHECK(plan.feasible >= alone.feasible);
      if (!alone.feasible) continue;
      CHECK(plan.predicted_peak_bytes <= budget);
      CHECK(plan.predicted_overhead <= alone.predicted_overhead);
      CHECK(plan.lower_bound == 0);
      saved += alone.predicted_overhead - plan.predicted_overhead;
      const StepSimulation again = remat::simulate_step(fast.profile(), plan.cuts, plan.offload);
      CHECK(again.peak_bytes == plan.predicted_peak_bytes);
      CHECK(again.offloaded_bytes == plan.offloaded_bytes);
      int64_t explained = 0;
      for (const remat::MemoryPlanOp& op : plan.ops) explained += op.offloaded_bytes;
      CHECK(explained == plan.offloaded_bytes);
    }
    INFO(profile.name);
    CHECK(saved > 0.05);
  }
}

TEST_CASE("A plan that moves is read back as it was", "[memory_plan]") {
  const StepProfile profile = remat::test::transformer_step(8);
  OffloadTerms terms = link(25, profile.plain_peak_bytes / 50);
  terms.places.push_back({.name = "disk", .out_gbps = 2, .in_gbps = 3, .max_bytes = 1 << 20});
  const MemoryPlanner planner(profile, {.offload = terms});
  const MemoryPlan plan = planner.plan(profile.plain_peak_bytes / 2);
  REQUIRE(plan.offloaded_bytes > 0);
  const MemoryPlan read = MemoryPlan::from_json(plan.to_json(), profile);
  CHECK(read.to_json() == plan.to_json());
  CHECK(read.offload == terms);
  CHECK(read.cuts.keep == plan.cuts.keep);
  CHECK(read.offloaded_bytes == plan.offloaded_bytes);
  CHECK(read.predicted_wait_us == plan.predicted_wait_us);
  CHECK_THAT(plan.table(), ContainsSubstring("  offloads "));
  CHECK_THAT(plan.explain(""), ContainsSubstring(" and offloads "));
}

TEST_CASE("A plan whose moves lack a part is refused", "[memory_plan]") {
  const StepProfile profile = remat::test::transformer_step(8);
  const MemoryPlanner planner(profile, {.offload = link(25, profile.plain_peak_bytes / 50)});
  const std::string text = planner.plan(profile.plain_peak_bytes / 2).to_json();
  for (const std::string key : {"offload", "offloaded", "wait_us"}) {
    const size_t begin = text.find(" \"" + key + "\": ");
    const size_t end = text.find('\n', begin);
    std::string damaged = text;
    damaged.erase(begin, end + 1 - begin);
    CHECK_THROWS_WITH(MemoryPlan::from_json(damaged, profile), ContainsSubstring("no " + key));
  }
}

TEST_CASE("Terms that no plan can be made for are refused", "[memory_plan]") {
  const auto refusal = [](const OffloadTerms& terms) -> std::string {
    try {
      MemoryPlanner(line_step(3), {.offload = terms});
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal(slow_terms(0, 0)).empty());
  OffloadTerms terms = slow_terms(remat::OffloadPlace::kNoLimit, 0);
  CHECK_THAT(refusal(terms),
             ContainsSubstring("offload.max_leaving_bytes: expected a limit, got none"));
  terms = slow_terms(0, remat::OffloadPlace::kNoLimit);
  CHECK_THAT(refusal(terms), ContainsSubstring("offload.prefetch_bytes: expected a limit"));
  terms = slow_terms(0, 0);
  terms.places[0].in_gbps = 0;
  CHECK_THAT(refusal(terms), ContainsSubstring("offload.places[0].in_gbps: expected above 0"));
  terms = slow_terms(-1, 0);
  CHECK_THAT(refusal(terms), ContainsSubstring("0 bytes or more, got -1"));
  terms = slow_terms(0, 0);
  terms.places[0].latency_us = std::numeric_limits<double>::quiet_NaN();
  CHECK_THAT(refusal(terms), ContainsSubstring("latency_us"));
}

}  // namespace
