// SPDX-License-Identifier: BSD-3-Clause

// Names of moments, and rows of ops.
#include "plan_report.h"

#include <algorithm>

#include "step_digest.h"
#include "step_units.h"

namespace remat::detail {

namespace {

constexpr const char* after_forward = "after the forward";

std::string op_text(const StepRecord& record) {
  return record.where.empty() ? record.op : record.op + ", " + record.where;
}

std::string unit_text(const StepCuts& cuts, int32_t unit) {
  const auto segments = static_cast<int32_t>(cuts.positions.size()) + 1;
  if (unit < segments) return "segment " + std::to_string(unit);
  const auto& [first, end] = cuts.groups[unit - segments];
  return "segments " + std::to_string(first) + " to " + std::to_string(end - 1);
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

}  // namespace

std::vector<KeptResult> kept_results(const StepGraph& graph, const CutCandidate& candidate) {
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

MemoryPlan describe(const StepGraph& graph, const StepSimulator& simulator, StepCuts cuts) {
  const StepSimulation& simulation = simulator.result();
  MemoryPlan plan;
  plan.predicted_peak_bytes = simulation.peak_bytes;
  plan.offloaded_bytes = simulation.offloaded_bytes;
  plan.predicted_wait_us = simulation.waited_us;
  plan.cuts = std::move(cuts);
  plan.peak_at = moment_text(graph.profile, plan.cuts, simulation.peak);
  plan.limit = limit_text(simulation, plan.peak_at);
  plan.phases.push_back({"forward", simulation.forward_peak_bytes});
  const int64_t after = graph.profile.end_bytes + simulation.kept_bytes + graph.profile.gap_bytes;
  if (after > simulation.forward_peak_bytes) plan.phases.push_back({after_forward, after});
  for (const TopUnit& top : simulation.top_units) {
    std::string name = top.end_segment - top.first_segment == 1
                           ? "segment " + std::to_string(top.first_segment)
                           : "segments " + std::to_string(top.first_segment) + " to " +
                                 std::to_string(top.end_segment - 1);
    plan.phases.push_back({std::move(name), top.peak_bytes});
  }
  for (int32_t j = 0; j < graph.size(); ++j) {
    const StepRecord& record = graph.profile.records[j];
    MemoryPlanOp op{record.op, record.where, record_digest(graph.profile, record), record.replay_us,
                    simulation.runs[j]};
    for (const int32_t v : graph.results[j]) op.made_bytes += graph.bytes(v);
    plan.ops.push_back(std::move(op));
  }
  const StepUnits units(graph, plan.cuts.positions, plan.cuts.groups);
  for (const KeptResult& kept : plan.cuts.keep) {
    const int32_t value = graph.results[kept.record][kept.result];
    if (units.home(value) != StepUnits::root) continue;
    MemoryPlanOp& op = plan.ops[kept.record];
    (simulator.leaves(value) ? op.offloaded_bytes : op.kept_bytes) += graph.bytes(value);
  }
  return plan;
}

}  // namespace remat::detail
