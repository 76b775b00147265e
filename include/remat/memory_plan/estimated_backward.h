// SPDX-License-Identifier: BSD-3-Clause

// An estimate of a backward that has not been measured.
#pragma once

#include <cstdint>

#include <remat/memory_plan/step_profile.h>
#include <remat/policy/export.h>

namespace remat {

/// The profile of a forward with estimated times and backward: a node for each record, which holds
/// gradients of the values that the record makes and reads, and its workspace. `leaf_bytes`: bytes
/// of the leaves' gradients, which come in addition.
/// @throws std::invalid_argument as StepProfile::validate does.
REMAT_API StepProfile with_estimated_backward(const StepProfile& profile, int64_t leaf_bytes);

}  // namespace remat
