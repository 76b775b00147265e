// SPDX-License-Identifier: BSD-3-Clause

// Where to cut a step of which only the structure is known.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/memory_plan/step_profile.h>
#include <remat/policy/export.h>

namespace remat {

/// Positions of cuts with which a step whose times and nodes are not known yet runs in little
/// memory: StepCuts::positions.
/// @throws std::invalid_argument as StepProfile::validate does.
REMAT_API std::vector<int32_t> measuring_cuts(const StepProfile& profile);

/// The peak of the step with such cuts, if all that crosses them is kept.
/// Throws as measuring_cuts.
REMAT_API int64_t peak_of_cuts(const StepProfile& profile, const std::vector<int32_t>& positions);

}  // namespace remat
