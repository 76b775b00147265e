// SPDX-License-Identifier: BSD-3-Clause

// Makes plans for points of the frontier, adds the lower bound to the plans, and looks up points.
#include <remat/planner/planner.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <stdexcept>

#include <remat/planner/sequence_solver.h>
#include <remat/policy/budget_text.h>
#include "lower_bound.h"
#include "planned_chain.h"

namespace remat {

Frontier::Frontier(std::vector<FrontierPoint> points, double ideal_time_us, bool exact)
    : points_(std::move(points)), ideal_time_us_(ideal_time_us), exact_(exact) {}

int64_t Frontier::least_budget_bytes() const {
  return points_.empty() ? 0 : points_.front().budget_bytes;
}

int64_t Frontier::no_checkpoint_peak_bytes() const {
  return points_.empty() ? 0 : points_.back().budget_bytes;
}

const FrontierPoint* Frontier::at(int64_t budget_bytes) const {
  const auto after = std::partition_point(
      points_.begin(), points_.end(),
      [&](const FrontierPoint& point) { return point.budget_bytes <= budget_bytes; });
  return after == points_.begin() ? nullptr : &*(after - 1);
}

using detail::Schedule;
using detail::ScheduledRegion;

struct Planner::State {
  State(const Profile& profile, const PlannerOptions& options)
      : chain(profile), solver(chain.model, options.max_breakpoints), bound(chain.model) {
    const double ideal_us = detail::to_us(chain.model.ideal_time);
    std::vector<FrontierPoint> points;
    for (const detail::Step& step : solver.whole()) {
      points.push_back({step.bytes + input_bytes(), detail::to_us(step.time), overhead(step.time)});
    }
    frontier = Frontier(std::move(points), ideal_us, solver.exact());
  }

  int64_t input_bytes() const { return chain.model.input_bytes(0); }

  double overhead(detail::Ticks time) const {
    if (chain.model.ideal_time == 0) return 0;
    return static_cast<double>(time) / static_cast<double>(chain.model.ideal_time) - 1;
  }

  /// Returns the least overhead, rounded down so that it never exceeds the overhead of a plan.
  double lower_bound(int64_t budget_bytes) const {
    if (chain.model.ideal_time == 0) return 0;
    constexpr double roundings = 4 * std::numeric_limits<double>::epsilon();
    const double ratio = bound.total_time_us(budget_bytes) / detail::to_us(chain.model.ideal_time);
    return std::max(0.0, ratio * (1 - roundings) - 1);
  }

  /// Adds the least budget of all plans, and the lower bound for this plan's budget.
  void add_bounds(Plan& plan) const {
    plan.least_budget_bytes = std::min(frontier.least_budget_bytes(), plan.simulated_peak_bytes);
    plan.lower_bound = plan.feasible ? lower_bound(plan.budget_bytes) : 0;
    if (plan.lower_bound <= plan.overhead) return;
    throw std::logic_error("[planner] budget " + std::to_string(plan.budget_bytes) +
                           ": expected a lower bound of at most the overhead " +
                           std::to_string(plan.overhead) + ", got " +
                           std::to_string(plan.lower_bound) + ". Report this.");
  }

  /// Returns the best schedule for the budget, or for the least possible budget if that is larger.
  Schedule best(int64_t budget_bytes) const {
    const int64_t least = solver.whole().front().bytes + input_bytes();
    return detail::extract_schedule(solver, std::max(budget_bytes, least) - input_bytes());
  }

  detail::PlannedChain chain;
  detail::SequenceSolver solver;
  detail::LowerBound bound;
  Frontier frontier;
};

namespace {

/// A schedule whose merged regions replay whole, and others not at all. Without merges in the
/// model, every region but the last replays whole.
Schedule layer_schedule(const detail::ChainModel& model) {
  Schedule schedule;
  const size_t last = model.length() - 1;
  for (size_t first = 0; first <= last;) {
    ScheduledRegion region;
    region.first = first;
    region.type = model.chain[first];
    bool replays = model.merges.empty() && first < last;
    for (const detail::Merge& merge : model.merges) {
      if (!model.matches(merge, first, last)) continue;
      region.count = merge.pattern.size();
      region.type = merge.type;
      replays = true;
      break;
    }
    const detail::Block& block = model.types[region.type];
    if (replays) region.rerun = detail::without_dead_ops(block, detail::all_ops(block));
    first += region.count;
    schedule.regions.push_back(region);
  }
  return schedule;
}

/// Throws if the simulation does not confirm the planned time and budget: a defect of the planner.
void check_replay(const Plan& plan, double planned_us, bool exact) {
  const bool in_time = exact ? plan.total_time_us == planned_us : plan.total_time_us <= planned_us;
  const bool in_budget = !plan.feasible || plan.simulated_peak_bytes <= plan.budget_bytes;
  if (in_time && in_budget) return;
  throw std::logic_error("[planner] budget " + std::to_string(plan.budget_bytes) +
                         ": expected a replay within it, of " + std::to_string(planned_us) +
                         " us, got " + std::to_string(plan.simulated_peak_bytes) + " bytes and " +
                         std::to_string(plan.total_time_us) + " us. Report this.");
}

}  // namespace

Planner::Planner(const Profile& profile, const PlannerOptions& options)
    : state_(std::make_shared<const State>(profile, options)) {}

const Profile& Planner::profile() const {
  return state_->chain.original;
}

const Frontier& Planner::frontier() const {
  return state_->frontier;
}

double Planner::lower_bound(int64_t budget_bytes) const {
  return state_->lower_bound(budget_bytes);
}

Plan Planner::plan(int64_t budget_bytes) const {
  if (budget_bytes < 0) {
    throw std::invalid_argument("[planner] budget: expected 0 bytes or more, got " +
                                std::to_string(budget_bytes) +
                                ". Give the bytes that activations may take.");
  }
  Plan plan = detail::to_plan(state_->chain, state_->best(budget_bytes));
  plan.budget_bytes = budget_bytes;
  plan.feasible = plan.simulated_peak_bytes <= budget_bytes;
  state_->add_bounds(plan);
  const FrontierPoint* point =
      state_->frontier.at(plan.feasible ? budget_bytes : state_->frontier.least_budget_bytes());
  check_replay(plan, point == nullptr ? 0 : point->total_time_us, state_->frontier.exact());
  return plan;
}

int64_t Planner::budget_bytes(std::string_view text) const {
  const int64_t peak = frontier().no_checkpoint_peak_bytes();
  if (const std::optional<int64_t> bytes = detail::bytes_of(text, peak)) return *bytes;
  const std::optional<double> fraction = detail::fraction_of(text);
  if (!fraction) {
    throw std::invalid_argument(
        "[planner] budget: expected bytes with a unit (2.5GiB, 300MB, 4096B), a percentage of the "
        "no-checkpoint peak (60%), or a number from 0 (each layer checkpointed) to 1 (nothing runs "
        "twice), got \"" +
        std::string(text) + "\". Give one of these.");
  }
  if (*fraction == 1) return peak;
  const int64_t least = layer_checkpoint().simulated_peak_bytes;
  return least + static_cast<int64_t>(*fraction * static_cast<double>(peak - least));
}

Plan Planner::layer_checkpoint() const {
  Plan plan = detail::to_plan(state_->chain, layer_schedule(state_->chain.model));
  plan.feasible = true;
  plan.budget_bytes = plan.simulated_peak_bytes;
  state_->add_bounds(plan);
  return plan;
}

}  // namespace remat
