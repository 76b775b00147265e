// SPDX-License-Identifier: BSD-3-Clause

// No plan of small random profiles beats the planner's, and no plan of the planner costs more than
// it says.
#include "planner/chain/brute_force.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <string>

#include <remat/planner/planner.h>

#include "support/catch.h"

namespace {

using remat::FrontierPoint;
using remat::Plan;
using remat::Planner;
using remat::Profile;
using remat::test::all_plans;
using remat::test::BruteCost;
using remat::test::BrutePlan;

constexpr size_t most_plans = 4000;

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

/// Returns, for each peak that allows a shorter time than all lower peaks, that time.
std::map<int64_t, double> frontier_of(const Profile& profile, const std::vector<BrutePlan>& plans) {
  std::map<int64_t, double> best;
  for (const BrutePlan& plan : plans) {
    const BruteCost cost = remat::test::replay(profile, plan);
    const auto [at, is_new] = best.emplace(cost.peak_bytes, cost.time_us);
    if (!is_new) at->second = std::min(at->second, cost.time_us);
  }
  double least = 1e300;
  for (auto at = best.begin(); at != best.end();) {
    const bool improves = at->second < least;
    least = std::min(least, at->second);
    at = improves ? std::next(at) : best.erase(at);
  }
  return best;
}

/// Returns what is wrong, or an empty text. Catch's assertions would be too slow for so many
/// checks.
std::string plan_fault_of(const Profile& profile, const std::vector<BrutePlan>& plans) {
  const std::map<int64_t, double> expected = frontier_of(profile, plans);
  const Planner planner(profile);
  const std::vector<FrontierPoint>& points = planner.frontier().points();
  if (points.size() != expected.size()) {
    return "breakpoints: expected " + std::to_string(expected.size()) + ", got " +
           std::to_string(points.size());
  }
  auto at = expected.begin();
  for (const FrontierPoint& point : points) {
    const std::string where = "budget " + std::to_string(point.budget_bytes) + ": ";
    if (point.budget_bytes != at->first || point.total_time_us != at->second) {
      return where + "expected (" + std::to_string(at->first) + ", " + std::to_string(at->second) +
             "), got time " + std::to_string(point.total_time_us);
    }
    ++at;
    const Plan plan = planner.plan(point.budget_bytes);
    const BruteCost cost = remat::test::replay(profile, remat::test::from_plan(profile, plan));
    if (cost.peak_bytes != plan.simulated_peak_bytes) {
      return where + "peak " + std::to_string(cost.peak_bytes) + ", said " +
             std::to_string(plan.simulated_peak_bytes);
    }
    if (cost.time_us != plan.total_time_us || cost.time_us != point.total_time_us)
      return where + "another time than said";
    if (!plan.feasible || cost.peak_bytes > point.budget_bytes) return where + "does not fit";
    // Between breakpoints the optimum stays the same while the bound falls; the bound is tightest
    // just below the next breakpoint.
    const int64_t next = at == expected.end() ? point.budget_bytes * 2 : at->first;
    for (const int64_t budget : {point.budget_bytes, (point.budget_bytes + next) / 2, next - 1}) {
      if (planner.lower_bound(budget) > point.overhead + 1e-12)
        return where + "lower bound above the optimum";
      const FrontierPoint* held = planner.frontier().at(budget);
      if (held == nullptr || held->budget_bytes != point.budget_bytes)
        return where + "not monotone";
    }
  }
  if (planner.plan(std::max<int64_t>(0, points.front().budget_bytes - 1)).feasible &&
      points.front().budget_bytes > 0) {
    return "feasible below the least budget";
  }
  return "";
}

}  // namespace

TEST_CASE("All plans of random profiles, tried one by one, come to the planner's frontier",
          "[policy][planner][fuzz]") {
  const uint64_t count = from_environment("REMAT_FUZZ_N", 2000);
  const uint64_t shard = from_environment("REMAT_FUZZ_SHARD", 0);
  size_t plans_tried = 0;
  size_t profiles = 0;
  size_t with_groups = 0;
  size_t with_merges = 0;
  for (uint64_t seed = shard * 1000000; profiles < count; ++seed) {
    std::mt19937 random(static_cast<uint32_t>(seed));
    const Profile profile = remat::test::random_profile(random);
    const std::vector<BrutePlan> plans = all_plans(profile, most_plans);
    if (plans.empty()) continue;  // Too many to try
    ++profiles;
    plans_tried += plans.size();
    with_groups += profile.chain.size() > 1;
    with_merges += !profile.merge_patterns.empty();
    const std::string fault = plan_fault_of(profile, plans);
    if (fault.empty()) continue;
    FAIL("seed " << seed << ": " << fault << "\n" << profile.to_json());
  }
  WARN(profiles << " profiles, " << plans_tried << " plans");
  // These numbers ensure that the test still covers enough.
  CHECK(plans_tried > 100 * profiles);
  CHECK(with_groups > profiles / 3);
  CHECK(with_merges > profiles / 20);
}
