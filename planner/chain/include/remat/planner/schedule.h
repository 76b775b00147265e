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

/// A step of a running schedule.
struct ScheduleEvent {
  enum class Kind : uint8_t { kForwardOnly, kForward, kBackward, kRelease };

  Kind kind = Kind::kForward;
  /// kForward and kBackward: index into Schedule::regions. kForwardOnly: a position in the chain.
  /// kRelease: i of the chain tensor x_i, the input of region i.
  size_t index = 0;
  /// kForwardOnly: true if the region is the first of its group, so that its input x_index stays.
  bool first = true;
};

/// The events of a schedule in order. Groups must nest around whole regions.
std::vector<ScheduleEvent> events_of(const Schedule& schedule, size_t length);

/// The fastest schedule within `bytes`, which exclude x_0 and must be enough for some schedule. For
/// each part, of equally fast choices an option is preferred to a merged region, a merged region to
/// a group, and then fewer kept bytes. The schedule need not have the fewest groups.
Schedule extract_schedule(const SequenceSolver& solver, int64_t bytes);

}  // namespace remat::detail
