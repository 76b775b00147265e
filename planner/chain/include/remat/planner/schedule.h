// SPDX-License-Identifier: BSD-3-Clause

// A plan as numbers: the ops that each region runs again, and the groups around regions.
#pragma once

#include <cstdint>
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

/// One event of a schedule.
struct ScheduleEvent {
  enum class Kind : uint8_t { kForwardOnly, kForward, kBackward, kRelease };

  Kind kind = Kind::kForward;
  /// For kForward and kBackward an index into Schedule::regions, for kForwardOnly a position in the
  /// chain. For kRelease the number i of the released chain tensor x_i, the input of region i.
  size_t index = 0;
  /// For kForwardOnly: true if the region is the first of its group, so that x_index is not freed.
  bool first = true;
};

/// The events of a schedule in order. Groups must nest around whole regions.
std::vector<ScheduleEvent> events_of(const Schedule& schedule, size_t length);

/// The fastest schedule within `bytes`, which exclude x_0 and must be enough for some schedule.
/// Among equally fast choices for a part, it takes an option rather than a merged region, a merged
/// region rather than a group, and then the choice that keeps fewer bytes. The schedule need not
/// have the fewest groups.
Schedule extract_schedule(const SequenceSolver& solver, int64_t bytes);

}  // namespace remat::detail
