// SPDX-License-Identifier: BSD-3-Clause

// From a profile to the plan for a budget, and to the cost of every budget.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <remat/planner/plan.h>
#include <remat/planner/profile.h>
#include <remat/policy/export.h>

namespace remat {

/// What a plan may be made of.
enum class PlanClass : uint8_t {
  kAll,    ///< Any policy of every op, merged regions, nested groups
  kRotor,  ///< Nested groups only: a region replays whole or not at all
};

struct PlannerOptions {
  PlanClass plan_class = PlanClass::kAll;
  /// Every set of policies is tried of regions with at most so many ops, which takes 2^ops; of
  /// larger ones the lower hull and its neighbours. 0 to 20; others count as the nearest.
  int exact_ops = 18;
  size_t max_breakpoints =
      0;  ///< Per part of the chain; fewer are faster and no longer optimal. 0 and 1: all.
  std::function<void(double fraction)> progress =
      {};  ///< Called on the constructing thread, with 0 to 1.
};

/// What a budget buys.
struct FrontierPoint {
  int64_t budget_bytes = 0;
  double total_time_us = 0;
  double overhead = 0;  ///< total time / ideal time - 1
};

/// All budgets at once: a plan for any budget takes the time of the last point whose budget is not
/// above it.
class REMAT_API Frontier {
 public:
  Frontier() = default;
  Frontier(std::vector<FrontierPoint> points, double ideal_time_us, bool exact);

  const std::vector<FrontierPoint>& points() const {
    return points_;
  }  ///< Budgets rise, times fall.
  double ideal_time_us() const { return ideal_time_us_; }
  int64_t least_budget_bytes() const;        ///< Below it nothing fits.
  int64_t no_checkpoint_peak_bytes() const;  ///< From here on nothing runs twice.
  const FrontierPoint* at(
      int64_t budget_bytes) const;  ///< nullptr: nothing fits. Lives as long as the frontier.
  bool exact() const {
    return exact_;
  }  ///< false: breakpoints were left out, times may be slightly above the optimum.

  /// "budget_bytes,total_time_us,overhead" and a line for each point.
  std::string to_csv() const;

 private:
  std::vector<FrontierPoint> points_;
  double ideal_time_us_ = 0;
  bool exact_ = true;
};

/// What a plan does with a slot, and why.
struct SlotReport {
  int position = 0;
  std::string region;
  std::string op;
  Policy policy = Policy::kSave;
  int64_t kept_bytes = 0;  ///< Of the op's outs, between forward and backward
  int64_t out_bytes = 0;
  double forward_us = 0;
  int forward_runs = 1;  ///< The first run, those inside groups, and the replay
  std::string reason;
};

/// Plans one profile. Planning for all budgets happens in the constructor; everything else is const
/// and may be called from many threads at once. Copies share the result.
class REMAT_API Planner {
 public:
  /// @throws std::invalid_argument as Profile::validate does.
  explicit Planner(const Profile& profile, const PlannerOptions& options = {});

  const Profile& profile() const;
  const Frontier& frontier() const;

  /// The fastest plan within the budget, replayed by the simulator. An infeasible one has feasible
  /// == false.
  /// @throws std::invalid_argument if the budget is negative.
  Plan plan(int64_t budget_bytes) const;

  /// Plan::from_json, and what only planning can tell must come out too: least_budget, lower_bound,
  /// gap, and of an infeasible plan least_at and held. The planner needs the options that the plan
  /// was made with. An infeasible plan has the table that plan() gives it.
  /// @throws std::invalid_argument as Plan::from_json.
  Plan read_plan(std::string_view text, const std::string& source = "plan") const;

  /// Overhead that no schedule within the budget beats; infinity: none fits.
  double lower_bound(int64_t budget_bytes) const;

  /// What people do by hand: every layer (merged regions if the profile has any, else all regions
  /// but the last) runs again whole, from its input. Its budget is its own peak.
  Plan layer_checkpoint() const;

  /// Bytes of "2.5GiB", "300 MB", "60%" of the no-checkpoint peak, or a number from 0
  /// (layer_checkpoint's peak) to 1 (nothing runs twice), which is torch's memory_budget.
  /// @throws std::invalid_argument for other text.
  int64_t budget_bytes(std::string_view text) const;

  /// What the plan does with an op or a tensor of that name; "12/attn.qkv": in row 12 only, unless
  /// that is itself a name.
  /// @throws std::invalid_argument if the profile has no such slot.
  std::vector<SlotReport> explain(const Plan& plan, std::string_view slot) const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

}  // namespace remat
