// SPDX-License-Identifier: BSD-3-Clause

// Runs of regions that come again and again, such as the half blocks of a transformer's block, as
// merged types of the chain planner: a plan may replay them as one segment.
#pragma once

#include <remat/planner/profile.h>

namespace remat::detail {

/// Op names must differ from type to type.
void add_merge_patterns(Profile& profile);

}  // namespace remat::detail
