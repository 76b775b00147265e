// SPDX-License-Identifier: BSD-3-Clause

// One kind of step of a function: measured, then planned.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <remat/budget/auto_checkpoint.h>
#include <remat/budget/memory_budget.h>
#include <remat/budget/step_log.h>
#include <remat/budget/step_measurement.h>
#include <remat/memory_plan/memory_plan.h>
#include <remat/memory_plan/memory_planner.h>
#include <remat/tape/cuts.h>

#include "step_decision.h"

namespace remat {

/// The ops of a step and the sizes of its arguments. Guarded by the state that has it.
class StepVariant {
 public:
  /// Of a forward that was measured; null: of one for which nothing is saved.
  StepVariant(StepSignature signature, std::unique_ptr<StepMeasurement> measurement,
              const MemoryBudget& budget);

  /// Of a plan from a file, that has not run yet.
  StepVariant(StepSignature signature, MemoryPlan plan);

  const StepSignature& signature() const { return signature_; }
  const Cuts& cuts() const { return cuts_; }
  const std::optional<MemoryPlan>& plan() const { return plan_; }

  /// True while steps of it are to be measured.
  bool wants_measuring() const {
    return measurement_ && !plan_ && limit_.empty() && failed_ < kMostFailed;
  }
  /// Measuring has failed too often in a row.
  bool is_given_up() const { return failed_ == kMostFailed; }
  bool saves_nothing() const { return !measurement_ && !plan_; }

  /// True if it has the same ops and sizes as the other.
  bool is_same(const StepVariant& other) const { return digest_ == other.digest_; }

  /// A step of it has run. What is wrong with it; "" if it counts.
  std::string add(StepLog& step);
  int measured() const { return measured_; }
  /// A step that was to be measured was of another kind, that nobody knows.
  void add_failure() { failed_ = std::min(failed_ + 1, kMostFailed); }

  /// Weights, and what the first step has left: gradients, the optimizer's state.
  int64_t static_bytes() const { return static_bytes_; }

  /// Of what wants_measuring().
  StepProfile profile() const { return measurement_->profile(); }

  /// True if the first step took more than the budget: then it is time for a plan.
  bool is_over(const MemoryBudget& budget) const;

  /// The plan; or why there is none; or neither, if the function takes less as it is.
  /// `other_bytes`: what another variant may take; if that has no plan either and the budget is a
  /// share, the least that there is.
  StepDecision decide(const MemoryBudget& budget, int64_t other_bytes, const OffloadTerms& offload,
                      const std::string& name) const;
  void take(StepDecision decision);

  /// Why there is no plan within the budget; "" if there is one, or nobody knows.
  const std::string& limit() const { return limit_; }

  bool is_from_file = false;  ///< Its ops have not been compared yet.
  uint64_t last_used = 0;

 private:
  static constexpr int kMostFailed = 8;  // in a row

  StepSignature signature_;
  std::string digest_;
  std::unique_ptr<StepMeasurement> measurement_;
  int64_t static_bytes_ = 0;
  int64_t measured_peak_ = 0;
  int measured_ = 0;
  int failed_ = 0;
  Cuts cuts_;
  std::optional<MemoryPlan> plan_;
  std::string limit_;
};

}  // namespace remat
