// SPDX-License-Identifier: BSD-3-Clause

// A memory planner's result for a budget.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <remat/planner/step_cuts.h>
#include <remat/planner/step_profile.h>
#include <remat/policy/export.h>

namespace remat {

/// A plan's decision for one op of the forward.
struct MemoryPlanOp {
  std::string op;
  std::string where;
  uint64_t digest = 0;          ///< Hash of the values that the op reads, makes and writes
  double replay_us = 0;         ///< Time of one recomputation
  int32_t runs = 0;             ///< Number of recomputations
  int64_t kept_bytes = 0;       ///< Bytes of results that stay on the device until backward
  int64_t offloaded_bytes = 0;  ///< Bytes of results that are kept by offloading them
  int64_t made_bytes = 0;       ///< Bytes of all results
};

/// A phase of the step: the forward; the time between forward and backward, if its peak exceeds the
/// forward's; or a top unit (a segment or group that is in no group) with the backward of its ops.
struct MemoryPlanPhase {
  std::string name;  ///< "forward", "after the forward", "segment 3", "segments 4 to 7"
  int64_t peak_bytes = 0;
  bool operator==(const MemoryPlanPhase&) const = default;
};

/// The peak and the overhead of one plan.
struct MemoryFrontierPoint {
  int64_t peak_bytes = 0;
  double overhead = 0;
};

/// Copies are independent, and threads may read one plan at the same time.
struct REMAT_API MemoryPlan {
  /// False if no plan fits; the other members then describe the plan that needs least memory.
  bool feasible = false;
  int64_t budget_bytes = 0;
  int64_t predicted_peak_bytes = 0;
  int64_t least_budget_bytes = 0;  ///< The smallest budget for which the planner found a plan
  /// Time of recomputation and waits, divided by the time of the step.
  double predicted_overhead = 0;
  int64_t offloaded_bytes = 0;   ///< Bytes of storages that leave the device for a while
  double predicted_wait_us = 0;  ///< Time spent waiting for copies of offloaded storages
  /// Terms of the offload engine that the plan is for; without places there is no engine.
  OffloadTerms offload;
  /// Overhead that no cuts within the budget beat (in an infeasible plan: no cuts within the
  /// predicted peak). Always 0 for a plan with an offload engine.
  double lower_bound = 0;
  std::string peak_at;  ///< Where the peak is: "replay of segment 3, aten::mm, h.3.attn"
  std::string limit;    ///< In an infeasible plan, why no plan fits; otherwise ""
  StepCuts cuts;
  std::vector<MemoryPlanPhase> phases;  ///< The forward, then top units in the order of the step
  std::vector<MemoryPlanOp> ops;        ///< One per record of the profile
  std::string profile_digest;
  std::shared_ptr<const StepProfile> profile;  ///< The planned profile; never null
  /// The plans for other budgets, by rising peaks and falling overheads. A plan read from JSON has
  /// only its own point.
  std::vector<MemoryFrontierPoint> frontier;

  /// JSON without profile and frontier.
  std::string to_json() const;

  /// Reads a plan for this profile.
  /// @throws std::invalid_argument `[memory plan] source:line: place: expected ..., got .... What
  /// to do.` for damaged text, for cuts that cannot run, and for a plan for another profile (the
  /// message names the first op that differs).
  static MemoryPlan from_json(std::string_view text, const StepProfile& profile,
                              const std::string& source = "plan");

  /// Explains why the plan offloads nothing, and what to do. "" if the plan offloads something, has
  /// no offload engine, or is infeasible, or if the engine's limits do not prevent offloading.
  std::string why_nothing_moves() const;

  /// Text with one line per phase.
  std::string table() const;

  /// Text about the ops whose name is `where`, and those that run in or below the module or named
  /// call `where`; "" means all ops. Neighbouring ops of one module or named call share a line.
  /// @throws std::invalid_argument if no op matches.
  std::string explain(std::string_view where) const;
};

}  // namespace remat
