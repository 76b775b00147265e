// SPDX-License-Identifier: BSD-3-Clause

// Checks of profiles and of cuts.
#pragma once

#include <remat/planner/step_cuts.h>
#include <remat/policy/json_tree.h>

namespace remat::detail {

/// @throws Fault for the first fault.
void check_profile(const StepProfile& profile);
void check_cuts(const StepCuts& cuts, const StepProfile& profile);

}  // namespace remat::detail
