// SPDX-License-Identifier: BSD-3-Clause

// Policies of regions with too many ops to try all sets.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/block.h>

namespace remat::detail {

/// Sets of rerun ops on the lower hull of replay time and kept bytes, and all sets that differ from
/// these in one op; without dead ops.
std::vector<OpSet> hull_rerun_sets(const Block& block);

}  // namespace remat::detail
