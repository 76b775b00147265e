// SPDX-License-Identifier: BSD-3-Clause

// The time ranges of the steps that a plan was for.
#pragma once

#include <vector>

#include <remat/recording/recording.h>

namespace remat::detail {

/// From the first op of the region to the end of its backward pass.
struct PlannedStep {
  TimeNs begin_ns = 0;
  TimeNs end_ns = 0;
};

/// The steps on the plan's thread that began at `plan` or later and before `end_ns`, in order. A
/// backward pass ends where the thread next runs an op of the program. If no region was recorded,
/// the whole time counts as one step.
std::vector<PlannedStep> planned_steps(const Recording& recording, const OnThread<PlanEvent>& plan,
                                       TimeNs end_ns);

}  // namespace remat::detail
