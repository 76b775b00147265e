// SPDX-License-Identifier: BSD-3-Clause

// Searches once; then looks up plans and describes them.
#include <remat/planner/memory_planner.h>

#include <algorithm>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include <remat/policy/budget_text.h>

#include "offload_json.h"
#include "plan_search.h"
#include "step_bound.h"

namespace remat {

namespace {

using detail::StepGraph;

/// Gives ops of one kind the median of their times, because noise would otherwise make each region
/// a type of its own.
StepProfile with_pooled_times(StepProfile profile) {
  std::map<uint64_t, std::vector<size_t>> kinds;
  for (size_t j = 0; j < profile.records.size(); ++j) {
    if (profile.records[j].kind != 0) kinds[profile.records[j].kind].push_back(j);
  }
  for (const auto& [kind, records] : kinds) {
    for (const auto time :
         {&StepRecord::forward_us, &StepRecord::replay_us, &StepRecord::backward_us}) {
      std::vector<double> times;
      for (const size_t j : records) times.push_back(profile.records[j].*time);
      const auto median = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
      std::nth_element(times.begin(), median, times.end());
      for (const size_t j : records) profile.records[j].*time = *median;
    }
  }
  return profile;
}

template <class Checked>
Checked validated(Checked given) {
  given.validate();
  return given;
}

double step_us_of(const StepProfile& profile) {
  double us = profile.other_us;
  for (const StepRecord& record : profile.records) us += record.forward_us + record.backward_us;
  return us;
}

constexpr const char* after_forward = "after the forward";

std::string op_text(const StepRecord& record) {
  return record.where.empty() ? record.op : record.op + ", " + record.where;
}

std::string segments_text(int32_t first, int32_t end) {
  return end - first == 1 ? "segment " + std::to_string(first)
                          : "segments " + std::to_string(first) + " to " + std::to_string(end - 1);
}

std::string unit_text(const StepCuts& cuts, int32_t unit) {
  const auto segments = static_cast<int32_t>(cuts.positions.size()) + 1;
  if (unit < segments) return segments_text(unit, unit + 1);
  const auto& [first, end] = cuts.groups[unit - segments];
  return segments_text(first, end);
}

std::string moment_text(const StepProfile& profile, const StepCuts& cuts,
                        const StepMoment& moment) {
  if (moment.record < 0) return "the forward";
  if (moment.record == static_cast<int32_t>(profile.records.size())) return after_forward;
  const std::string op = op_text(profile.records[moment.record]);
  if (moment.phase == StepPhase::kForward) return "forward, " + op;
  if (moment.phase == StepPhase::kReplay)
    return "replay of " + unit_text(cuts, moment.unit) + ", " + op;
  return "backward, " + profile.nodes[moment.node].name + " of " + op;
}

std::string limit_text(const StepSimulation& simulation, const std::string& peak_at) {
  const bool in_forward = simulation.peak.phase == StepPhase::kForward;
  return (peak_at == after_forward ? "" : "at ") + peak_at + ": " +
         std::to_string(simulation.peak_fixed_bytes) + " of " +
         std::to_string(simulation.peak_bytes) +
         (in_forward ? " bytes are there even if nothing is kept"
                     : " bytes are gradients and workspace");
}

std::vector<KeptResult> kept_results(const StepGraph& graph,
                                     const detail::CutCandidate& candidate) {
  std::vector<KeptResult> kept;
  for (const int32_t v : candidate.kept) {
    const std::vector<int32_t>& results = graph.results[graph.maker(v)];
    const auto at = std::find(results.begin(), results.end(), v) - results.begin();
    const bool moves = std::binary_search(candidate.moved.begin(), candidate.moved.end(), v);
    kept.push_back(
        {graph.maker(v), static_cast<int32_t>(at), moves ? Policy::kOffload : Policy::kSave});
  }
  std::sort(kept.begin(), kept.end(), [](const KeptResult& a, const KeptResult& b) {
    return std::pair(a.record, a.result) < std::pair(b.record, b.result);
  });
  return kept;
}

/// The plan with these cuts, without budget, overhead, bounds and digest; `limit` is set even if
/// the plan is feasible.
MemoryPlan describe(const StepGraph& graph, const StepCuts& cuts, const OffloadTerms& offload) {
  std::vector<char> keep = detail::kept_flags(graph.profile, cuts);
  detail::StepSimulator simulator(graph, cuts.positions, cuts.groups, offload);
  const StepSimulation& simulation = simulator.run(keep, detail::MissingValues::kRefuse);
  MemoryPlan plan;
  plan.offload = offload;
  plan.predicted_peak_bytes = simulation.peak_bytes;
  plan.offloaded_bytes = simulation.offloaded_bytes;
  plan.predicted_wait_us = simulation.waited_us;
  const double step_us = step_us_of(graph.profile);
  plan.predicted_overhead =
      step_us == 0 ? 0 : (simulation.rerun_us + simulation.waited_us) / step_us;
  plan.cuts = cuts;
  plan.peak_at = moment_text(graph.profile, plan.cuts, simulation.peak);
  plan.limit = limit_text(simulation, plan.peak_at);
  plan.phases.push_back({"forward", simulation.forward_peak_bytes});
  const int64_t after = graph.profile.end_bytes + simulation.kept_bytes + graph.profile.gap_bytes;
  if (after > simulation.forward_peak_bytes) plan.phases.push_back({after_forward, after});
  for (const TopUnit& top : simulation.top_units) {
    plan.phases.push_back({segments_text(top.first_segment, top.end_segment), top.peak_bytes});
  }
  for (int32_t j = 0; j < graph.size(); ++j) {
    const StepRecord& record = graph.profile.records[j];
    MemoryPlanOp op{record.op, record.where, detail::record_digest(graph.profile, record),
                    record.replay_us, simulation.runs[j]};
    for (const int32_t v : graph.results[j]) op.made_bytes += graph.bytes(v);
    plan.ops.push_back(std::move(op));
  }
  const detail::StepUnits units(graph, plan.cuts.positions, plan.cuts.groups);
  for (const KeptResult& kept : plan.cuts.keep) {
    const int32_t value = graph.results[kept.record][kept.result];
    if (units.home(value) != detail::StepUnits::root) continue;
    MemoryPlanOp& op = plan.ops[kept.record];
    (simulator.leaves(value) ? op.offloaded_bytes : op.kept_bytes) += graph.bytes(value);
  }
  return plan;
}

}  // namespace

struct MemoryPlanner::State {
  State(StepProfile given, const MemoryPlannerOptions& given_options)
      : original(validated(std::move(given))),
        profile(with_pooled_times(original)),
        graph(profile),
        options(validated(given_options)),
        bound(detail::bound_of(graph)),
        digest(original.digest()) {
    step_us = step_us_of(profile);
    detail::PlanSearch search(graph, options);
    search.run();
    evaluations = search.evaluations();
    for (const auto& [peak, candidate] : search.found()) {
      cuts.push_back(
          {candidate.places->first, candidate.places->second, kept_results(graph, candidate)});
      frontier.push_back({peak, step_us == 0 ? 0 : candidate.more_us / step_us});
    }
  }

  /// Index of the last point whose peak is within the budget, or 0 if there is none.
  size_t point(int64_t budget_bytes) const {
    const auto above = std::upper_bound(
        frontier.begin(), frontier.end(), budget_bytes,
        [](int64_t budget, const MemoryFrontierPoint& at) { return budget < at.peak_bytes; });
    return above == frontier.begin() ? 0 : static_cast<size_t>(above - frontier.begin()) - 1;
  }

  /// Rounded down, so that no plan appears to beat the bound.
  double lower_bound(int64_t budget_bytes) const {
    if (step_us == 0 || !options.offload.places.empty()) return 0;
    return std::max(0.0,
                    detail::least_rerun_us(bound, budget_bytes) / step_us * (1 - 1e-9) - 1e-12);
  }

  StepProfile original;
  StepProfile profile;  // with pooled times
  StepGraph graph;
  MemoryPlannerOptions options;
  std::vector<detail::BoundLine> bound;
  std::string digest;
  double step_us = 0;
  std::vector<MemoryFrontierPoint> frontier;
  std::vector<StepCuts> cuts;  // one per point of the frontier
  int64_t evaluations = 0;
};

MemoryPlanner::MemoryPlanner(StepProfile profile, const MemoryPlannerOptions& options)
    : state_(std::make_shared<const State>(std::move(profile), options)) {}

const StepProfile& MemoryPlanner::profile() const {
  return state_->original;
}

const std::vector<MemoryFrontierPoint>& MemoryPlanner::frontier() const {
  return state_->frontier;
}

int64_t MemoryPlanner::evaluations() const {
  return state_->evaluations;
}

int64_t MemoryPlanner::budget_bytes(std::string_view text) const {
  const int64_t measured = state_->original.plain_peak_bytes;
  const int64_t peak = measured > 0 ? measured : state_->frontier.back().peak_bytes;
  if (const std::optional<int64_t> bytes = detail::bytes_of(text, peak)) return *bytes;
  throw std::invalid_argument(
      "[memory plan] budget: expected bytes with a unit (2.5GiB, 300MB, 4096B) or a percentage of "
      "the peak of the step (60%), got \"" +
      std::string(text) + "\". Give one of these.");
}

MemoryPlan MemoryPlanner::plan(int64_t budget_bytes) const {
  if (budget_bytes < 0) {
    throw std::invalid_argument("[memory plan] budget: expected 0 bytes or more, got " +
                                std::to_string(budget_bytes) +
                                ". Give the bytes that a step may take.");
  }
  const size_t point = state_->point(budget_bytes);
  MemoryPlan plan = describe(state_->graph, state_->cuts[point], state_->options.offload);
  plan.budget_bytes = budget_bytes;
  plan.feasible = plan.predicted_peak_bytes <= budget_bytes;
  if (plan.feasible) plan.limit.clear();
  plan.lower_bound = state_->lower_bound(std::max(budget_bytes, plan.predicted_peak_bytes));
  plan.least_budget_bytes = state_->frontier.front().peak_bytes;
  plan.profile_digest = state_->digest;
  plan.profile = std::shared_ptr<const StepProfile>(state_, &state_->original);
  plan.frontier = state_->frontier;
  return plan;
}

void MemoryPlannerOptions::validate() const {
  detail::check_terms(offload);
}

MemoryPlan plan_of_cuts(const StepProfile& profile, const StepCuts& cuts, int64_t budget_bytes,
                        const OffloadTerms& offload) {
  const StepProfile pooled = with_pooled_times(validated(profile));
  cuts.validate(profile);
  detail::check_terms(offload);
  const StepGraph graph(pooled);
  MemoryPlan plan = describe(graph, cuts, offload);
  plan.budget_bytes = std::max(budget_bytes, plan.predicted_peak_bytes);
  plan.least_budget_bytes = plan.predicted_peak_bytes;
  plan.feasible = true;
  plan.limit.clear();
  plan.profile_digest = profile.digest();
  plan.profile = std::make_shared<const StepProfile>(profile);
  plan.frontier = {{plan.predicted_peak_bytes, plan.predicted_overhead}};
  return plan;
}

}  // namespace remat
