// SPDX-License-Identifier: BSD-3-Clause

// What a backward may take that nobody has measured.
#pragma once

#include <cstdint>

#include <remat/memory_plan/step_profile.h>
#include <remat/policy/export.h>

namespace remat {

/// The profile of a forward with a guess at times and backward: a node for each record, which holds
/// gradients of what the record makes and reads, and its workspace; besides them `leaf_bytes`,
/// gradients of leaves.
/// @throws std::invalid_argument as StepProfile::validate does.
REMAT_API StepProfile with_estimated_backward(const StepProfile& profile, int64_t leaf_bytes);

}  // namespace remat
