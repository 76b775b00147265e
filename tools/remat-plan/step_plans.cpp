// SPDX-License-Identifier: BSD-3-Clause

// Plans steps by MemoryPlanner, and prints them.
#include "output.h"

#include <remat/planner/memory_plan_file.h>
#include <remat/planner/memory_planner.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <stdexcept>

namespace remat_plan {

using nlohmann::ordered_json;
using remat::MemoryFrontierPoint;
using remat::MemoryPlan;
using remat::MemoryPlanner;
using remat::StepProfile;

namespace {

int show(std::ostream& out, const Arguments& arguments, const MemoryPlan& plan) {
  if (!arguments.plan_path.empty()) remat::MemoryPlanFile{{}, plan}.save(arguments.plan_path);
  if (arguments.json) {
    out << plan.to_json() << '\n';
  } else {
    out << plan.table();
    if (!arguments.explain.empty()) out << '\n' << plan.explain(arguments.explain);
  }
  return plan.feasible ? kDone : kInfeasible;
}

ordered_json frontier_json(const MemoryPlanner& planner) {
  ordered_json points = ordered_json::array();
  for (const MemoryFrontierPoint& point : planner.frontier())
    points.push_back({{"peak", point.peak_bytes}, {"overhead", point.overhead}});
  return {{"profile", planner.profile().digest()},
          {"no_checkpoint_peak", planner.budget_bytes("100%")},
          {"least_budget", planner.frontier().front().peak_bytes},
          {"frontier", std::move(points)}};
}

/// One line for the least budget, and one for each tenth of the peak above it.
void print_frontier(std::ostream& out, const MemoryPlanner& planner) {
  const int64_t peak = planner.budget_bytes("100%");
  const int64_t least = planner.frontier().front().peak_bytes;
  out << "step '" << planner.profile().name << "', " << planner.profile().records.size()
      << " ops; peak without checkpointing " << bytes_text(peak) << "\n\n"
      << "  memory         budget   overhead  lower bound\n";
  const auto line = [&](int64_t budget) {
    const MemoryPlan plan = planner.plan(budget);
    out << format(
        " %6.1f %%  %12s  %9s  %11s\n",
        100 * static_cast<double>(budget) / static_cast<double>(std::max<int64_t>(1, peak)),
        bytes_text(budget).c_str(), percent(plan.predicted_overhead).c_str(),
        percent(plan.lower_bound).c_str());
  };
  line(least);
  for (int tenth = 1; tenth <= 10; ++tenth) {
    if (const int64_t budget = peak * tenth / 10; budget > least) line(budget);
  }
}

/// Reads the plan of a file that --plan wrote, and checks it against the profile.
MemoryPlan replayed(const Arguments& arguments, const StepProfile& profile) {
  const std::string text = read_text(arguments.replay_path);
  MemoryPlan plan = remat::MemoryPlanFile::from_json(text, arguments.replay_path).plan;
  if (plan.profile_digest == profile.digest()) return plan;
  throw std::runtime_error("[remat-plan] " + arguments.replay_path +
                           ": expected a plan for profile " + profile.digest() + ", got one for " +
                           plan.profile_digest + ". Give the profile that it was made for.");
}

}  // namespace

bool is_step_profile(const std::string& text) {
  const ordered_json json = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("records") && json.contains("values");
}

int plan_step(std::ostream& out, const Arguments& arguments, const std::string& text) {
  const StepProfile profile = StepProfile::from_json(text, arguments.profile_path);
  if (!arguments.replay_path.empty()) return show(out, arguments, replayed(arguments, profile));
  const MemoryPlanner planner(profile);
  if (!arguments.budget.empty())
    return show(out, arguments, planner.plan(planner.budget_bytes(arguments.budget)));
  if (arguments.json) {
    out << frontier_json(planner).dump(1) << '\n';
  } else {
    print_frontier(out, planner);
  }
  return kDone;
}

}  // namespace remat_plan
