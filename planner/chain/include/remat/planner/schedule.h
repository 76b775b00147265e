// SPDX-License-Identifier: BSD-3-Clause

// A plan as numbers: the policy of every region, and the groups around them.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <remat/planner/chain.h>
#include <remat/planner/plan.h>
#include <remat/planner/sequence_solver.h>

namespace remat::detail {

/// A region, or several that run as one.
struct ScheduledRegion {
  size_t first = 0;
  size_t count = 1;
  int type = 0;
  OpSet rerun;
};

struct Schedule {
  std::vector<ScheduledRegion> regions;  ///< Cover the chain in order
  std::vector<PlanGroup> groups;         ///< Outer groups before inner ones
};

/// A step of a running schedule. Forwards and backwards have an index into Schedule::regions.
struct ScheduleEvent {
  enum class Kind : uint8_t { kForwardOnly, kForward, kBackward, kRelease };

  Kind kind = Kind::kForward;
  /// For kForwardOnly a position in the chain, for kRelease the chain tensor x_index.
  size_t index = 0;
  /// For kForwardOnly: true if it is the first of its group, so that x_index stays.
  bool first = true;
};

/// The events of a schedule in order. Groups must nest around whole regions.
std::vector<ScheduleEvent> events_of(const Schedule& schedule, size_t length);

/// The fastest schedule within `bytes` besides x_0, which must be enough for one. Among equally
/// fast ones prefers options to merged regions to groups, then the fewest kept bytes, choice by
/// choice; that is not always the fewest groups.
Schedule extract_schedule(const SequenceSolver& solver, int64_t bytes);

}  // namespace remat::detail
