// SPDX-License-Identifier: BSD-3-Clause

// The lower hull of replay time and kept bytes of one region, exact for any number of ops.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/block.h>

namespace remat::detail {

/// Conditions that the region's neighbours impose.
struct KeepBounds {
  bool input_available = true;  ///< False: no op that reads the input may run again
  /// False: no op that reads the output may run again. The output never counts as kept.
  bool output_available = true;
  bool output_rerun = false;  ///< The op that makes the output must run again
};

struct KeepPoint {
  Ticks time = 0;
  int64_t bytes = 0;
  OpSet rerun;
};

/// Corners of the hull, in order of rising time and falling bytes. Empty if no set of rerun ops is
/// possible. `rerun_time`: the time of each op; if it is empty, the times are those of the block.
std::vector<KeepPoint> keep_hull(const Block& block, const KeepBounds& bounds,
                                 const std::vector<Ticks>& rerun_time = {});

/// Returns the sets of rerun ops at the corners, and all sets that differ from a corner's set in
/// one op. No set has dead ops.
std::vector<OpSet> hull_rerun_sets(const Block& block);

}  // namespace remat::detail
