// SPDX-License-Identifier: BSD-3-Clause

// Policies of regions with too many ops to try them all.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/block.h>

namespace remat::detail {

/// Sets of rerun ops on the lower hull of replay time and kept bytes, and the sets one op away from
/// these. No dead ops.
std::vector<OpSet> hull_rerun_sets(const Block& block);

}  // namespace remat::detail
