// SPDX-License-Identifier: BSD-3-Clause

#include "step_variant.h"

#include <algorithm>
#include <utility>

#include <remat/budget/plan_cuts.h>
#include <remat/planner/measuring_cuts.h>
#include <remat/planner/step_cuts.h>

#include "messages.h"

namespace remat {
namespace {

/// Share of the budget kept free if sizes depend on data, because the next step may be larger.
constexpr double kMargin = 0.02;

/// Sum of the bytes that the step allocated and that are still alive, and of outside memory.
int64_t bytes_left(const StepLog& step, const StepMeasurement& measurement) {
  int64_t bytes = measurement.outside_bytes();
  for (const StepLog::Block& block : step.blocks) {
    if (block.died == StepLog::kNever) bytes += block.bytes;
  }
  return bytes;
}

/// The profile with times estimated from bytes, because the times of one cold step are of little
/// use, and differ between processes that must have the same cuts.
StepProfile without_times(StepProfile profile) {
  constexpr double kBytesInUs = 4096;  // only the ratio between records matters
  for (StepRecord& record : profile.records) {
    int64_t bytes = 0;
    for (const auto* values : {&record.makes, &record.reads}) {
      for (const int32_t value : *values) bytes += profile.values[static_cast<size_t>(value)].bytes;
    }
    record.forward_us = record.replay_us = 1 + static_cast<double>(bytes) / kBytesInUs;
    record.backward_us = 2 * record.forward_us;
  }
  return profile;
}

/// Cuts where few bytes cross, with all crossing values kept. If a step with these cuts would
/// exceed the budget, returns the cuts of a plan for `profile` instead.
std::shared_ptr<PlannedCuts> cuts_for_measuring(const StepProfile& profile,
                                                const MemoryBudget& budget) {
  StepCuts planned;
  planned.positions = measuring_cuts(profile);
  const std::optional<int64_t> bytes =
      profile.nodes.empty() ? std::nullopt : budget.bytes_of_plain(profile.plain_peak_bytes);
  const bool exceeds = bytes && peak_of_cuts(profile, planned.positions) > *bytes;
  if (exceeds) planned = MemoryPlanner(without_times(profile)).plan(*bytes).cuts;
  std::shared_ptr<PlannedCuts> cuts = cuts_of(planned, profile);
  if (!exceeds && !planned.positions.empty()) cuts->keep.reset();
  return cuts;
}

/// Cuts for a step that saves nothing. They expect any ops but no slots, so the first saved tensor
/// counts as a difference from the plan.
std::shared_ptr<PlannedCuts> cuts_for_nothing() {
  auto expected = std::make_shared<ExpectedTape>();
  expected->any_ops = true;
  std::shared_ptr<PlannedCuts> cuts = cuts_of(StepCuts());
  cuts->expected = std::move(expected);
  return cuts;
}

}  // namespace

StepVariant::StepVariant(StepSignature signature, std::unique_ptr<StepMeasurement> measurement,
                         const MemoryBudget& budget)
    : signature_(std::move(signature)), measurement_(std::move(measurement)) {
  if (!measurement_) {
    cuts_ = cuts_for_nothing();
    return;
  }
  const StepProfile profile = measurement_->profile();
  digest_ = profile.digest();
  measurement_->take_leaves();  // releases the leaves, which nobody should hold between steps
  cuts_ = cuts_for_measuring(profile, budget);
}

StepVariant::StepVariant(StepSignature signature, MemoryPlan plan)
    : is_from_file(true),
      signature_(std::move(signature)),
      digest_(plan.profile_digest),
      cuts_(cuts_of(plan)),
      plan_(std::move(plan)) {}

std::string StepVariant::add(StepLog& step, const MemoryBudget& budget) {
  std::string fault = step.backward.fault();
  if (fault.empty() && !measurement_->add_step(step)) {
    fault = "expected the ops of the first step, and their backward";
  }
  if (!fault.empty()) {
    add_failure();
    return fault;
  }
  failed_ = 0;
  if (measured_++ == 0) {
    static_bytes_ = bytes_left(step, *measurement_);
    cuts_ = cuts_for_measuring(measurement_->profile(), budget);
  }
  return "";
}

StepDecision StepVariant::decide(const MemoryBudget& budget, int64_t other_bytes,
                                 const OffloadTerms& offload, const std::string& name) const {
  const MemoryPlanner planner(measurement_->profile(), {.offload = offload});
  int64_t bytes = budget.bytes(planner, static_bytes_);
  if (measurement_->has_varying_sizes()) {
    const int64_t least = std::min(bytes, planner.frontier().front().peak_bytes);
    bytes = std::max(least, static_cast<int64_t>(static_cast<double>(bytes) * (1 - kMargin)));
  }
  bytes = std::max(bytes, other_bytes);
  MemoryPlan plan = planner.plan(bytes);
  if (!plan.feasible && other_bytes > 0 && budget.is_share())
    plan = planner.plan(plan.least_budget_bytes);
  const int64_t plain_bytes = plan.profile->plain_peak_bytes;
  const bool takes_more = !plan.feasible || plan.predicted_peak_bytes > plain_bytes;
  // The step fits as it is. A plan would need more memory, because a tape copies kept memory before
  // the step overwrites it.
  if (plain_bytes <= bytes && takes_more) return {};
  if (!plan.feasible) return {.limit = limit_message(name, plan, budget.text())};
  return {.plan = std::move(plan)};
}

void StepVariant::take(StepDecision decision) {
  limit_ = std::move(decision.limit);
  if (!limit_.empty()) return;
  cuts_ = decision.plan ? cuts_of(*decision.plan) : nullptr;
  plan_ = std::move(decision.plan);
  measurement_.reset();
}

}  // namespace remat
