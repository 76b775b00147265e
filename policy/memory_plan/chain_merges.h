// SPDX-License-Identifier: BSD-3-Clause

// Recurring runs of regions, such as the half blocks of a transformer's block, as merged types of
// the chain planner, whose plans may replay them as one segment.
#pragma once

#include <remat/planner/profile.h>

namespace remat::detail {

/// Adds merge patterns. Op names must differ between types.
void add_merge_patterns(Profile& profile);

}  // namespace remat::detail
