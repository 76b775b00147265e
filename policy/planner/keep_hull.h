// SPDX-License-Identifier: BSD-3-Clause

// The lower hull of replay time against kept bytes of one region, exact for any number of ops.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/block.h>

namespace remat::detail {

/// What the region's neighbours settle.
struct KeepBounds {
  bool input_available = true;  ///< Else no op that reads the input may run again.
  bool output_available =
      true;  ///< Else no op that reads the output may run again. It is never counted as kept.
  bool output_rerun = false;  ///< The op that makes the output must run again.
};

struct KeepPoint {
  Ticks time = 0;
  int64_t bytes = 0;
  OpSet rerun;
};

/// Corners of the hull, time rising, bytes falling. Empty if there is no way. `rerun_time` is each
/// op's, from the block if empty.
std::vector<KeepPoint> keep_hull(const Block& block, const KeepBounds& bounds,
                                 const std::vector<Ticks>& rerun_time = {});

}  // namespace remat::detail
