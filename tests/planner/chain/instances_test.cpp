// SPDX-License-Identifier: BSD-3-Clause

// The planner reproduces the optima of tests/data/planner, which were found by other programs.
#include <cmath>
#include <nlohmann/json.hpp>

#include <remat/planner/planner.h>

#include "planner/chain/test_data.h"
#include "support/catch.h"

using remat::Plan;
using remat::Planner;
using remat::Profile;
using remat::test::instances;
using remat::test::read_file;

namespace {

struct Instance {
  explicit Instance(const std::filesystem::path& path)
      : expected(nlohmann::json::parse(read_file(path))),
        planner(Profile::from_json(read_file(path), path.filename().string())) {}

  nlohmann::json expected;
  Planner planner;
};

/// Checks that a plan fits, and says so itself.
void check_fits(const Plan& plan, int64_t budget_bytes) {
  CHECK(plan.feasible);
  CHECK(plan.budget_bytes == budget_bytes);
  CHECK(plan.simulated_peak_bytes <= budget_bytes);
  CHECK(plan.lower_bound <= plan.overhead);
}

void check_infeasible(const Planner& planner, int64_t budget_bytes) {
  CAPTURE(budget_bytes);
  const Plan plan = planner.plan(budget_bytes);
  CHECK_FALSE(plan.feasible);
  CHECK(plan.least_budget_bytes > budget_bytes);
  CHECK(plan.least_budget_bytes == planner.frontier().least_budget_bytes());
  CHECK_THAT(plan.peak_region, ContainsSubstring("region "));
}

}  // namespace

TEST_CASE("Small and medium instances come out exactly at every breakpoint", "[policy][planner]") {
  std::vector<std::filesystem::path> paths = instances("small_");
  for (const auto& path : instances("medium_")) paths.push_back(path);
  REQUIRE(paths.size() == 17);
  for (const auto& path : paths) {
    CAPTURE(path.filename());
    const Instance instance(path);
    const auto& frontier = instance.expected["frontier"];
    CHECK(instance.planner.frontier().points().size() == frontier.size());
    CHECK(instance.planner.frontier().ideal_time_us() == instance.expected["ideal_time"]);
    for (const auto& point : frontier) {
      const int64_t budget = point["budget"];
      CAPTURE(budget);
      const Plan plan = instance.planner.plan(budget);
      check_fits(plan, budget);
      CHECK(plan.total_time_us == point["optimum"].get<double>());
      // One byte less must cost time, or not fit; otherwise the breakpoint would be lower.
      const Plan below = instance.planner.plan(budget - 1);
      CHECK((!below.feasible || below.total_time_us > plan.total_time_us));
    }
    check_infeasible(instance.planner, instance.expected["infeasible_budget"]);
  }
}

TEST_CASE("Large instances come out to a millionth", "[policy][planner]") {
  int compared = 0;
  for (const auto& path : instances("large_")) {
    CAPTURE(path.filename());
    const nlohmann::json expected = nlohmann::json::parse(read_file(path));
    if (!expected.contains("frontier")) continue;
    const Instance instance(path);
    for (const auto& point : expected["frontier"]) {
      const int64_t budget = point["budget"];
      CAPTURE(budget);
      if (point["optimum"].is_null()) {
        check_infeasible(instance.planner, budget);
        continue;
      }
      const Plan plan = instance.planner.plan(budget);
      check_fits(plan, budget);
      // The expected numbers are rounded to 0.01 us of some 500,000.
      CHECK(std::abs(plan.total_time_us / point["optimum"].get<double>() - 1) <= 1e-6);
      // The planner looks at more moments than the bound of the data, so its bound is never lower
      // (data: 6 digits).
      CHECK(plan.lower_bound >= point["universal_lower_bound_overhead"].get<double>() - 1e-6);
      ++compared;
    }
    const int64_t least = expected["min_feasible_budget"];
    CHECK(instance.planner.frontier().least_budget_bytes() == least);
    CHECK(instance.planner.plan(least).feasible);
    check_infeasible(instance.planner, least - 1);
    CHECK(instance.planner.frontier().no_checkpoint_peak_bytes() == expected["no_checkpoint_peak"]);
  }
  CHECK(compared == 115);
}
