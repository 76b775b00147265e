// SPDX-License-Identifier: BSD-3-Clause

// A kind of step that a function runs: measured, then planned.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <remat/budget/auto_checkpoint.h>
#include <remat/budget/memory_budget.h>
#include <remat/budget/step_log.h>
#include <remat/budget/step_measurement.h>
#include <remat/engine/planned_cuts.h>
#include <remat/planner/memory_plan.h>
#include <remat/planner/memory_planner.h>

#include "step_decision.h"

namespace remat {

/// Steps with the same ops and argument sizes. Guarded by the mutex of AutoCheckpoint::State.
class StepVariant {
 public:
  /// Made from the forward of a first step. `measurement`: null if nothing is saved for backward.
  StepVariant(StepSignature signature, std::unique_ptr<StepMeasurement> measurement,
              const MemoryBudget& budget);

  /// Made from a plan file, with a plan that has not run yet.
  StepVariant(StepSignature signature, MemoryPlan plan);

  const StepSignature& signature() const { return signature_; }
  /// Cuts for the next step of this variant; null if the function runs outside of regions.
  const std::shared_ptr<PlannedCuts>& cuts() const { return cuts_; }
  const std::optional<MemoryPlan>& plan() const { return plan_; }

  /// True while steps of this variant must be measured.
  bool wants_measuring() const {
    return measurement_ && !plan_ && limit_.empty() && failed_ < kMostFailed;
  }
  /// True if measuring has failed kMostFailed times without a success between them.
  bool is_given_up() const { return failed_ == kMostFailed; }
  bool saves_nothing() const { return !measurement_ && !plan_; }

  /// True if `other` has the same ops and sizes.
  bool is_same(const StepVariant& other) const { return digest_ == other.digest_; }

  /// Adds the log of a measured step. Returns why the step does not count, or "" if it does.
  std::string add(StepLog& step, const MemoryBudget& budget);
  int measured() const { return measured_; }
  /// Counts a step that was measured as this variant in vain: it had a fault, or ran other ops.
  void add_failure() { failed_ = std::min(failed_ + 1, kMostFailed); }

  /// Bytes of weights, and of memory that the first step left: gradients and optimizer state.
  int64_t static_bytes() const { return static_bytes_; }

  /// The profile so far. Requires wants_measuring().
  StepProfile profile() const { return measurement_->profile(); }

  /// Decides on a plan, on the reason why there is none, or on neither if the function needs less
  /// memory without a plan. `other_bytes`: largest budget of another variant, which this variant
  /// may use, too; 0: none. If no plan fits, and the budget is a share, takes the least-memory
  /// plan.
  StepDecision decide(const MemoryBudget& budget, int64_t other_bytes, const OffloadTerms& offload,
                      const std::string& name) const;
  void take(StepDecision decision);

  /// Why no plan is within the budget; "" if there is a plan, or no decision yet.
  const std::string& limit() const { return limit_; }

  bool is_from_file = false;  ///< From a plan file, and not yet compared with a step's ops
  uint64_t last_used = 0;

 private:
  static constexpr int kMostFailed = 8;

  StepSignature signature_;
  std::string digest_;
  std::unique_ptr<StepMeasurement> measurement_;
  int64_t static_bytes_ = 0;
  int measured_ = 0;
  int failed_ = 0;
  std::shared_ptr<PlannedCuts> cuts_;
  std::optional<MemoryPlan> plan_;
  std::string limit_;
};

}  // namespace remat
