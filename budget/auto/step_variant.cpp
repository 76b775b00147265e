// SPDX-License-Identifier: BSD-3-Clause

#include "step_variant.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <remat/budget/measured_forward.h>
#include <remat/budget/plain_call_cuts.h>
#include <remat/budget/plan_cuts.h>
#include <remat/memory_plan/estimated_backward.h>
#include <remat/memory_plan/measuring_cuts.h>
#include <remat/memory_plan/step_cuts.h>

#include "plan_words.h"

namespace remat {
namespace {

/// Share of the budget kept free for steps whose sizes depend on data: the next step may be larger
/// than those measured.
constexpr double kMargin = 0.02;

/// Bytes that the step has left, and its weights.
int64_t bytes_left(const StepLog& step, const StepMeasurement& measurement) {
  int64_t bytes = measurement.outside_bytes();
  for (const StepLog::Block& block : step.blocks) {
    if (block.died == StepLog::kNever) bytes += block.bytes;
  }
  return bytes;
}

int64_t peak_of(const StepLog& step) {
  const auto alive =
      step.bytes_alive([](const StepLog::Block& block) { return !StepLog::is_of_library(block); });
  const auto end = alive.begin() + step.nodes.back().end;
  return *std::max_element(alive.begin(), end + 1);
}

/// Share of the budget that a step may use while its backward is only estimated.
constexpr double kShareOfGuess = 0.9;

/// Bytes of the leaves' gradients that are alive at once in backward.
int64_t gradient_bytes(const std::vector<at::Tensor>& leaves, c10::Device device) {
  int64_t made = 0;
  int64_t largest = 0;
  for (const at::Tensor& leaf : leaves) {
    if (!leaf.requires_grad() || !leaf.is_leaf() || !counts_on(device, leaf.device())) continue;
    const auto bytes = static_cast<int64_t>(leaf.nbytes());
    if (!leaf.grad().defined()) made += bytes;
    largest = std::max(largest, bytes);
  }
  return std::max(made, largest);
}

/// Cuts where little crosses, keeping all that crosses. If that is estimated to exceed the budget,
/// uses the cuts of a plan made from the estimate.
Cuts cuts_for_measuring(const StepProfile& profile, int64_t gradient_bytes,
                        const MemoryBudget& budget) {
  Cuts cuts = plain_call_cuts();
  const std::vector<int32_t> positions = measuring_cuts(profile);
  const StepProfile guess = with_estimated_backward(profile, gradient_bytes);
  const auto budget_bytes = budget.bytes_of_plain(guess.plain_peak_bytes);
  const auto bytes =
      static_cast<int64_t>(kShareOfGuess * static_cast<double>(budget_bytes.value_or(0)));
  if (budget_bytes && peak_of_cuts(guess, positions) > bytes) {
    cuts = cuts_of(MemoryPlanner(guess).plan(bytes).cuts);
  } else {
    for (const int32_t position : positions)
      cuts.positions.push_back(static_cast<size_t>(position));
    if (cuts.positions.empty()) cuts.keep.emplace();
  }
  cuts.expected = expected_tape(profile);
  cuts.rest_bytes = rest_bytes(profile);
  return cuts;
}

/// Cuts for a step that saves nothing. A step that saves something differs from their expected
/// tape.
Cuts cuts_for_nothing() {
  auto expected = std::make_shared<ExpectedTape>();
  expected->any_ops = true;
  Cuts cuts = plain_call_cuts();
  cuts.keep.emplace();
  cuts.expected = std::move(expected);
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
  const int64_t gradients = gradient_bytes(measurement_->take_leaves(), measurement_->device());
  cuts_ = cuts_for_measuring(profile, gradients, budget);
}

StepVariant::StepVariant(StepSignature signature, MemoryPlan plan)
    : is_from_file(true),
      signature_(std::move(signature)),
      digest_(plan.profile_digest),
      cuts_(cuts_of(plan)),
      plan_(std::move(plan)) {}

std::string StepVariant::add(StepLog& step) {
  std::string fault = find_backward_fault(step);
  if (fault.empty() && !measurement_->add_step(step)) {
    fault = "expected the ops of the first step, and their backward";
  }
  if (!fault.empty()) {
    add_failure();
    return fault;
  }
  failed_ = 0;
  measured_peak_ = std::max(measured_peak_, peak_of(step));
  if (measured_++ == 0) static_bytes_ = bytes_left(step, *measurement_);
  return "";
}

bool StepVariant::is_over(const MemoryBudget& budget) const {
  const auto bytes = budget.bytes_of_plain(measurement_->profile().plain_peak_bytes);
  return bytes && measured_peak_ > *bytes;
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
  // A plan would only add copies of memory that the step overwrites.
  if (plain_bytes <= bytes && takes_more) return {};
  if (!plan.feasible) return {.limit = words_of_limit(name, plan, budget.text())};
  return {.plan = std::move(plan)};
}

void StepVariant::take(StepDecision decision) {
  limit_ = std::move(decision.limit);
  if (!limit_.empty()) return;
  cuts_ = decision.plan ? cuts_of(*decision.plan) : Cuts();
  plan_ = std::move(decision.plan);
  measurement_.reset();
}

}  // namespace remat
