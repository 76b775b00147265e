// SPDX-License-Identifier: BSD-3-Clause

// Formats plans as tables and JSON; reads and writes whole files.
#include "output.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace remat_plan {

using nlohmann::ordered_json;
using remat::FrontierPoint;
using remat::Plan;
using remat::Planner;
using remat::PlanRow;

namespace {

constexpr std::array<double, 11> shown_percent = {10, 12.2, 15, 20, 25, 30, 40.9, 50, 60, 75, 100};

/// Prints a run of rows, such as "row 3  attn+mlp: RECOMPUTE up gelu".
void print_run(std::ostream& out, const std::vector<const PlanRow*>& run) {
  std::string regions;
  std::string again;
  for (const PlanRow* row : run) {
    regions += (regions.empty() ? "" : "+") + row->region +
               (row->part > 0 ? "#" + std::to_string(row->part) : "");
    for (const remat::PlanOp& op : row->ops) {
      if (op.policy == remat::Policy::kRecompute) again += " " + op.name;
    }
  }
  out << "row " << run.front()->position << "  " << regions << ": "
      << (again.empty() ? "nothing runs again" : "RECOMPUTE" + again) << '\n';
}

void print_infeasible(std::ostream& out, const Plan& plan) {
  out << "no plan fits " << bytes_text(plan.budget_bytes) << "; the least that fits is "
      << bytes_text(plan.least_budget_bytes) << " (" << plan.least_budget_bytes << " B), held in "
      << plan.peak_region << "\n";
}

}  // namespace

std::string percent(double fraction) {
  return std::isfinite(fraction) ? remat::detail::percent_text(fraction, 2) : "-";
}

std::string read_text(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    throw std::runtime_error(
        "[remat-plan] " + path +
        ": expected a file that can be read and is not empty. Correct the path.");
  }
  return text.str();
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file)
    throw std::runtime_error("[remat-plan] " + path +
                             ": expected a path that can be written. Correct it.");
}

void print_plan(std::ostream& out, const Planner& planner, const Plan& plan) {
  if (!plan.feasible) {
    print_infeasible(out, plan);
    return;
  }
  const double whole = static_cast<double>(planner.frontier().no_checkpoint_peak_bytes());
  out << "budget      " << bytes_text(plan.budget_bytes) << ", "
      << percent(static_cast<double>(plan.budget_bytes) / whole) << " of the "
      << bytes_text(planner.frontier().no_checkpoint_peak_bytes()) << " without checkpointing\n"
      << "peak        " << bytes_text(plan.simulated_peak_bytes) << " ("
      << plan.simulated_peak_bytes << " B) in " << plan.peak_region << '\n'
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
  std::vector<const PlanRow*> run;
  for (const PlanRow& row : plan.table) {
    run.push_back(&row);
    if (static_cast<int>(run.size()) < row.run_count) continue;
    print_run(out, run);
    run.clear();
  }
}

void print_frontier(std::ostream& out, const Planner& planner) {
  const remat::Frontier& frontier = planner.frontier();
  // A peak of 0 bytes counts as 1 byte, because shares are divided by the peak.
  const double whole =
      static_cast<double>(std::max<int64_t>(1, frontier.no_checkpoint_peak_bytes()));
  out << "without checkpointing: " << bytes_text(frontier.no_checkpoint_peak_bytes())
      << format(", %.2f ms", frontier.ideal_time_us() / 1000) << "; " << frontier.points().size()
      << " breakpoints" << (frontier.exact() ? "" : " (thinned out)") << "\n\n"
      << "    memory         budget   overhead  lower bound\n";
  const auto line = [&](double share, int64_t budget) {
    const Plan plan = planner.plan(budget);
    const double bound = planner.lower_bound(budget);
    out << format("  %6.1f %%  %13s  %9s  %11s\n", 100 * share, bytes_text(budget).c_str(),
                  plan.feasible ? percent(plan.overhead).c_str() : "no plan",
                  plan.feasible ? percent(bound).c_str() : "-");
  };
  const int64_t least = planner.plan(0).least_budget_bytes;
  line(static_cast<double>(least) / whole, least);
  for (const double share : shown_percent) {
    const int64_t budget = static_cast<int64_t>(share / 100 * whole);
    if (budget > least)
      line(share / 100, share == 100 ? frontier.no_checkpoint_peak_bytes() : budget);
  }
  const Plan layers = planner.layer_checkpoint();
  out << "\neach layer checkpointed: " << bytes_text(layers.simulated_peak_bytes) << " ("
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
