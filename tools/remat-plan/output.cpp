// SPDX-License-Identifier: BSD-3-Clause

// Formats plans as tables and JSON.
#include "output.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "text.h"

namespace remat_plan {

using nlohmann::ordered_json;
using remat::FrontierPoint;
using remat::Plan;
using remat::Planner;
using remat::PlanRow;
using remat::Policy;

namespace {

constexpr std::array<double, 11> shown_percent = {10, 12.2, 15, 20, 25, 30, 40.9, 50, 60, 75, 100};

/// Names of the ops with a policy, such as "attn.ln attn.qkv".
std::string names(const std::vector<const PlanRow*>& run, Policy policy) {
  std::string all;
  for (const PlanRow* row : run) {
    for (const remat::PlanOp& op : row->ops) {
      if (op.policy == policy) all += (all.empty() ? "" : " ") + op.name;
    }
  }
  return all;
}

/// Descriptions, each with the rows that it describes, in the order of their first rows.
using Alike = std::vector<std::pair<std::string, std::vector<int>>>;

void add_row(Alike& all, const std::string& description, int row) {
  const auto at = std::find_if(all.begin(), all.end(),
                               [&](const auto& alike) { return alike.first == description; });
  if (at == all.end()) {
    all.push_back({description, {row}});
  } else {
    at->second.push_back(row);
  }
}

/// Runs of rows with the same description.
Alike alike_runs(const Plan& plan) {
  Alike all;
  for (size_t i = 0; i < plan.table.size();) {
    std::vector<const PlanRow*> run;
    std::string regions;
    for (int k = 0; k < plan.table[i].run_count; ++k) {
      const PlanRow& row = plan.table[i + static_cast<size_t>(k)];
      run.push_back(&row);
      regions +=
          (k == 0 ? "" : "+") + row.region + (row.part > 0 ? "#" + std::to_string(row.part) : "");
    }
    std::string description = regions + ": ";
    const std::string again = names(run, Policy::kRecompute);
    description += again.empty() ? "nothing runs again" : "RECOMPUTE " + again;
    add_row(all, description, static_cast<int>(i));
    i += run.size();
  }
  return all;
}

/// A text such as "row 3" or "rows 1 to 71 by 2, 74" that names exactly these rows.
std::string row_list(const std::vector<int>& rows) {
  std::string all = rows.size() == 1 ? "row " : std::to_string(rows.size()) + " runs, rows ";
  for (size_t i = 0; i < rows.size();) {
    if (i > 0) all += ", ";
    all += std::to_string(rows[i]);
    size_t last = i + 1;
    const int stride = last < rows.size() ? rows[last] - rows[i] : 0;
    while (last + 1 < rows.size() && rows[last + 1] - rows[last] == stride) ++last;
    if (last < i + 2) {
      ++i;
      continue;
    }
    all += " to " + std::to_string(rows[last]);
    if (stride > 1) all += " by " + std::to_string(stride);
    i = last + 1;
  }
  return all;
}

void print_infeasible(std::ostream& out, const Plan& plan) {
  out << "no plan fits " << in_words(plan.budget_bytes) << "; the least that fits is "
      << in_words(plan.least_budget_bytes) << " (" << plan.least_budget_bytes << " B), held in "
      << plan.peak_region << "\n";
}

}  // namespace

void print_plan(std::ostream& out, const Planner& planner, const Plan& plan) {
  if (!plan.feasible) {
    print_infeasible(out, plan);
    return;
  }
  const double whole = static_cast<double>(planner.frontier().no_checkpoint_peak_bytes());
  out << "budget      " << in_words(plan.budget_bytes) << ", "
      << percent(static_cast<double>(plan.budget_bytes) / whole) << " of the "
      << in_words(planner.frontier().no_checkpoint_peak_bytes()) << " without checkpointing\n"
      << "peak        " << in_words(plan.simulated_peak_bytes) << " (" << plan.simulated_peak_bytes
      << " B) in " << plan.peak_region << '\n'
      << "time        " << format("%.2f ms, ", plan.total_time_us / 1000) << percent(plan.overhead)
      << " above the " << format("%.2f ms", planner.frontier().ideal_time_us() / 1000)
      << " in which nothing runs twice\n"
      << "bound       no schedule is below " << percent(planner.lower_bound(plan.budget_bytes))
      << '\n';
  if (!plan.groups.empty()) {
    out << "groups     ";
    for (const remat::PlanGroup& group : plan.groups)
      out << " [" << group.first << ", " << group.next << ")";
    out << '\n';
  }
  for (const auto& [description, rows] : alike_runs(plan))
    out << row_list(rows) << "  " << description << '\n';
}

void print_frontier(std::ostream& out, const Planner& planner) {
  const remat::Frontier& frontier = planner.frontier();
  // A profile without bytes counts as one byte, to divide by.
  const double whole =
      static_cast<double>(std::max<int64_t>(1, frontier.no_checkpoint_peak_bytes()));
  const Planner rotor(planner.profile(), {.plan_class = remat::PlanClass::kRotor});
  out << "without checkpointing: " << in_words(frontier.no_checkpoint_peak_bytes())
      << format(", %.2f ms", frontier.ideal_time_us() / 1000) << "; " << frontier.points().size()
      << " breakpoints" << (frontier.exact() ? "" : " (thinned out)") << "\n\n"
      << "    memory         budget   overhead  "
      << "lower bound      Rotor\n";
  const auto line = [&](double share, int64_t budget) {
    const Plan plan = planner.plan(budget);
    const FrontierPoint* point = rotor.frontier().at(budget);
    const double bound = planner.lower_bound(budget);
    out << format("  %6.1f %%  %13s  %9s  %11s  %9s\n", 100 * share, in_words(budget).c_str(),
                  plan.feasible ? percent(plan.overhead).c_str() : "no plan",
                  plan.feasible ? percent(bound).c_str() : "-",
                  point == nullptr ? "no plan" : percent(point->overhead).c_str());
  };
  const int64_t least = planner.plan(0).least_budget_bytes;
  line(static_cast<double>(least) / whole, least);
  for (const double share : shown_percent) {
    const int64_t budget = static_cast<int64_t>(share / 100 * whole);
    if (budget > least)
      line(share / 100, share == 100 ? frontier.no_checkpoint_peak_bytes() : budget);
  }
  const Plan layers = planner.layer_checkpoint();
  out << "\neach layer checkpointed: " << in_words(layers.simulated_peak_bytes) << " ("
      << percent(static_cast<double>(layers.simulated_peak_bytes) / whole) << "), overhead "
      << percent(layers.overhead)
      << "; a plan of that size: " << percent(planner.plan(layers.simulated_peak_bytes).overhead)
      << '\n';
}

std::string frontier_json(const Planner& planner) {
  const remat::Frontier& frontier = planner.frontier();
  ordered_json points = ordered_json::array();
  for (const FrontierPoint& point : frontier.points()) {
    points.push_back({{"budget", point.budget_bytes},
                      {"total_time", point.total_time_us},
                      {"overhead", point.overhead}});
  }
  const ordered_json json = {{"ideal_time", frontier.ideal_time_us()},
                             {"least_budget", frontier.least_budget_bytes()},
                             {"no_checkpoint_peak", frontier.no_checkpoint_peak_bytes()},
                             {"exact", frontier.exact()},
                             {"frontier", std::move(points)}};
  return json.dump(1) + "\n";
}

}  // namespace remat_plan
