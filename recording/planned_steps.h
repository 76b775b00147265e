// SPDX-License-Identifier: BSD-3-Clause

// The time ranges of the steps that a plan was for.
#pragma once

#include <utility>
#include <vector>

#include <remat/recording/recording.h>

namespace remat::detail {

/// The steps on the plan's thread that began at `plan` or later and before `end_ns`, in order: each
/// as the times of the region's first op and of the end of its backward pass, where the thread next
/// runs an op of the program. If no region was recorded, the whole time counts as one step.
std::vector<std::pair<TimeNs, TimeNs>> planned_steps(const Recording& recording,
                                                     const OnThread<PlanEvent>& plan,
                                                     TimeNs end_ns);

}  // namespace remat::detail
