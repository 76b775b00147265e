// SPDX-License-Identifier: BSD-3-Clause

// The planner that makes plans for any budget from the profile of a step.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <remat/planner/memory_plan.h>
#include <remat/planner/step_cuts.h>
#include <remat/planner/step_profile.h>
#include <remat/policy/export.h>
#include <remat/policy/offload_terms.h>

namespace remat {

struct REMAT_API MemoryPlannerOptions {
  OffloadTerms offload{};  ///< From OffloadEngine::terms(); without places, plans offload nothing
  int32_t grid = 32;  ///< Number of budgets for which the search improves the choice of kept values
  /// The refinement of the plans ends after this many simulations. They include a few hundred for
  /// the chain planner's proposals, which always run. With `offload`, a second refinement runs as
  /// many more.
  int32_t evaluations = 6000;

  /// @throws std::invalid_argument if `offload` has places, and a number in it is invalid, or
  /// max_leaving_bytes or prefetch_bytes is no limit.
  void validate() const;
};

/// Plans one step. The constructor does all planning; everything else is const and may be called
/// from many threads at once. Copies share the result. Equal profiles give equal plans.
class REMAT_API MemoryPlanner {
 public:
  /// @throws std::invalid_argument as StepProfile::validate and MemoryPlannerOptions::validate do.
  explicit MemoryPlanner(StepProfile profile, const MemoryPlannerOptions& options = {});

  const StepProfile& profile() const;

  /// The peaks and overheads of the plans found, by rising peaks and falling overheads.
  const std::vector<MemoryFrontierPoint>& frontier() const;

  /// The fastest plan found whose predicted peak is within the budget. A larger budget never gives
  /// a slower plan. If none fits, `feasible` is false and `limit` says why.
  /// @throws std::invalid_argument if the budget is negative.
  MemoryPlan plan(int64_t budget_bytes) const;

  /// Converts to bytes: "8GB", "2.5 GiB", or "60%" of the peak of a step that keeps everything.
  /// @throws std::invalid_argument for other text.
  int64_t budget_bytes(std::string_view text) const;

  /// Number of simulations that the constructor ran.
  int64_t evaluations() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// A plan with exactly these cuts, made without a search. Its frontier has only this plan, and its
/// lower bound is 0. The budget is `budget_bytes`, or the predicted peak if that is more. Throws as
/// StepProfile::validate, StepCuts::validate and simulate_step do, and as
/// MemoryPlannerOptions::validate does for `offload`.
REMAT_API MemoryPlan plan_of_cuts(const StepProfile& profile, const StepCuts& cuts,
                                  int64_t budget_bytes, const OffloadTerms& offload = {});

}  // namespace remat
