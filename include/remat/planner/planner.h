// SPDX-License-Identifier: BSD-3-Clause

// The planner: plans of a profile for any budget, and the cost of every budget.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <remat/planner/plan.h>
#include <remat/planner/profile.h>
#include <remat/policy/export.h>

namespace remat {

struct PlannerOptions {
  /// Limit on the steps of each part's function from memory to least time. A limit makes planning
  /// faster, but plans may then not be optimal. 0 and 1: no limit.
  size_t max_breakpoints = 0;
};

/// A budget and the time of its plan.
struct FrontierPoint {
  int64_t budget_bytes = 0;
  double total_time_us = 0;
  double overhead = 0;  ///< Total time / ideal time - 1
};

/// Times of the plans for all budgets. The plan for a budget takes the time of the last point whose
/// budget is not larger.
class REMAT_API Frontier {
 public:
  Frontier() = default;
  Frontier(std::vector<FrontierPoint> points, double ideal_time_us, bool exact);

  /// Points in order of rising budgets and falling times.
  const std::vector<FrontierPoint>& points() const { return points_; }
  double ideal_time_us() const { return ideal_time_us_; }
  int64_t least_budget_bytes() const;  ///< The smallest feasible budget
  /// The smallest budget with which nothing is recomputed.
  int64_t no_checkpoint_peak_bytes() const;
  /// The last point within the budget, owned by the frontier; nullptr if no plan fits.
  const FrontierPoint* at(int64_t budget_bytes) const;
  /// False if some steps were left out, so that times may be slightly above the optimum.
  bool exact() const { return exact_; }

 private:
  std::vector<FrontierPoint> points_;
  double ideal_time_us_ = 0;
  bool exact_ = true;
};

/// Plans one profile. The constructor plans for all budgets; everything else is const and may be
/// called from many threads at once. Copies share the result.
class REMAT_API Planner {
 public:
  /// @throws std::invalid_argument as Profile::validate does.
  explicit Planner(const Profile& profile, const PlannerOptions& options = {});

  const Profile& profile() const;
  const Frontier& frontier() const;

  /// The fastest plan within the budget, checked by the simulator. If no plan fits, feasible is
  /// false.
  /// @throws std::invalid_argument if the budget is negative.
  Plan plan(int64_t budget_bytes) const;

  /// Overhead that no schedule within the budget beats; infinity if no schedule fits.
  double lower_bound(int64_t budget_bytes) const;

  /// The plan that people write by hand: it recomputes every layer whole from its input. The layers
  /// are the merged regions, or all regions but the last if the profile merges none. The plan's
  /// budget is its peak.
  Plan layer_checkpoint() const;

  /// Converts to bytes: "2.5GiB", "300 MB", "60%" of the peak without checkpoints, or a number like
  /// torch's memory_budget, from 0 (layer_checkpoint's peak) to 1 (the peak without checkpoints).
  /// @throws std::invalid_argument for other text.
  int64_t budget_bytes(std::string_view text) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace remat
