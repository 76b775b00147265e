// SPDX-License-Identifier: BSD-3-Clause

// What a memory planner decides for a budget.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <remat/memory_plan/step_cuts.h>
#include <remat/memory_plan/step_profile.h>
#include <remat/policy/export.h>

namespace remat {

/// What a plan does with one op of the forward.
struct MemoryPlanOp {
  std::string op;
  std::string where;
  uint64_t digest = 0;          ///< Of what it reads, makes and writes
  double replay_us = 0;         ///< One run again
  int32_t runs = 0;             ///< Beyond the forward's
  int64_t kept_bytes = 0;       ///< Of its results, between forward and backward
  int64_t offloaded_bytes = 0;  ///< Of its results, moved to other memory meanwhile
  int64_t made_bytes = 0;       ///< Of its results
};

/// The forward, or a top unit: a segment or group that is in no group, with its backward.
struct MemoryPlanPhase {
  std::string name;  ///< "forward", "after the forward", "segment 3", "segments 4 to 7"
  int64_t peak_bytes = 0;
  bool operator==(const MemoryPlanPhase&) const = default;
};

/// What a budget buys.
struct MemoryFrontierPoint {
  int64_t peak_bytes = 0;
  double overhead = 0;
};

/// A plain value: copies are independent, and threads may read one at the same time.
struct REMAT_API MemoryPlan {
  bool feasible = false;  ///< false: what follows describes the plan that needs least.
  int64_t budget_bytes = 0;
  int64_t predicted_peak_bytes = 0;
  int64_t least_budget_bytes = 0;  ///< The least that the planner found a plan for
  double predicted_overhead = 0;   ///< Time of what runs again, and waits / time of the step
  int64_t offloaded_bytes = 0;     ///< Of storages that leave the device for a while
  double predicted_wait_us = 0;    ///< For their copies
  OffloadTerms offload;            ///< Of the engine that it was made for; no places: none
  /// Overhead that no cuts within the budget beat (of an infeasible plan: within its own peak).
  /// With OFFLOAD 0.
  double lower_bound = 0;
  std::string peak_at;  ///< "replay of segment 3, aten::mm, h.3.attn"
  std::string limit;    ///< Of an infeasible plan: what stands in the way; else "".
  StepCuts cuts;
  std::vector<MemoryPlanPhase> phases;  ///< The forward, then top units in the order of the step
  std::vector<MemoryPlanOp> ops;        ///< One per record of the profile
  std::string profile_digest;
  std::shared_ptr<const StepProfile> profile;  ///< That it was made for; never null.
  /// What other budgets buy: peaks rise, overheads fall. Of a plan from JSON only its own point.
  std::vector<MemoryFrontierPoint> frontier;

  /// Without profile and frontier.
  std::string to_json() const;

  /// Reads a plan for this profile.
  /// @throws std::invalid_argument `[memory plan] source:line: place: expected ..., got .... What
  /// to do.` for damaged text, cuts that cannot run, and a plan for another profile, by the first
  /// op that differs.
  static MemoryPlan from_json(std::string_view text, const StepProfile& profile,
                              const std::string& source = "plan");

  /// What stands in the way of a plan for an offload engine that moves nothing, and what to do;
  /// "" if it moves something, is for none, or nothing stands in the way.
  std::string why_nothing_moves() const;

  /// One line per phase, for people.
  std::string table() const;

  /// What becomes of the ops whose place is `where` or below it, or whose name is `where`; "": of
  /// all. Neighbours of one place are one line.
  /// @throws std::invalid_argument if there are none.
  std::string explain(std::string_view where) const;
};

}  // namespace remat
