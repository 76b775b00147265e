// SPDX-License-Identifier: BSD-3-Clause

// When the steps ran that a plan was for.
#pragma once

#include <vector>

#include <remat/recording/recording.h>

namespace remat::detail {

/// From the first op of the region to the end of its backward.
struct PlannedStep {
  TimeNs begin_ns = 0;
  TimeNs end_ns = 0;
};

/// Those that began from `plan` on and before `end_ns`, on its thread, in order. Backward ends
/// where the thread next runs an op of the program. If no region is told of, all of the time is
/// one.
std::vector<PlannedStep> planned_steps(const Recording& recording, const OnThread<PlanEvent>& plan,
                                       TimeNs end_ns);

}  // namespace remat::detail
