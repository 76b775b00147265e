// SPDX-License-Identifier: BSD-3-Clause

// From the profile of a step to the plan for any budget.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <remat/memory_plan/memory_plan.h>
#include <remat/memory_plan/step_cuts.h>
#include <remat/memory_plan/step_profile.h>
#include <remat/policy/export.h>
#include <remat/policy/offload_terms.h>

namespace remat {

struct REMAT_API MemoryPlannerOptions {
  ReplayCosts costs{};
  OffloadTerms offload{};  ///< OffloadEngine::terms() measures them. No places: nothing is moved.
  int32_t grid = 32;       ///< Budgets for which what is kept is changed value by value
  /// Simulations after which that ends. Proposals of the chain planner, some hundreds, always run.
  int32_t evaluations = 6000;

  /// @throws std::invalid_argument for terms without speed or without max_leaving_bytes.
  void validate() const;
};

/// All planning happens in the constructor; everything else is const and may be called from many
/// threads at once. Copies share the result. The same profile gives the same plans.
class REMAT_API MemoryPlanner {
 public:
  /// @throws std::invalid_argument as StepProfile::validate and the options' do.
  explicit MemoryPlanner(StepProfile profile, const MemoryPlannerOptions& options = {});

  const StepProfile& profile() const;

  /// Peaks rise, overheads fall.
  const std::vector<MemoryFrontierPoint>& frontier() const;

  /// The fastest plan found whose predicted peak is within the budget. More budget never makes it
  /// slower. An infeasible one has feasible == false and `limit`.
  /// @throws std::invalid_argument if the budget is negative.
  MemoryPlan plan(int64_t budget_bytes) const;

  /// Bytes of "8GB", "2.5 GiB", or of "60%" of the peak of a step of which everything is kept.
  /// @throws std::invalid_argument for other text.
  int64_t budget_bytes(std::string_view text) const;

  /// Simulations that the constructor ran.
  int64_t evaluations() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// The plan that has these cuts, without a search: of the frontier it knows its own point. Its
/// budget is `budget_bytes`, or its predicted peak if that is more.
/// Throws as StepProfile::validate, StepCuts::validate and simulate_step do.
REMAT_API MemoryPlan plan_of_cuts(const StepProfile& profile, const StepCuts& cuts,
                                  int64_t budget_bytes, const OffloadTerms& offload = {});

}  // namespace remat
