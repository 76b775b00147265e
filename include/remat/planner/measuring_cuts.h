// SPDX-License-Identifier: BSD-3-Clause

// Cuts for a step of which only the structure is known.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/step_profile.h>
#include <remat/policy/export.h>

namespace remat {

/// Positions of cuts (StepCuts::positions) with which a step runs in little memory, so that it can
/// be measured. The profile may lack times and nodes.
/// @throws std::invalid_argument as StepProfile::validate does.
REMAT_API std::vector<int32_t> measuring_cuts(const StepProfile& profile);

/// The peak in bytes of the step with cuts at `positions`, if every value that crosses a cut is
/// kept. Throws as measuring_cuts() does.
REMAT_API int64_t peak_of_cuts(const StepProfile& profile, const std::vector<int32_t>& positions);

}  // namespace remat
