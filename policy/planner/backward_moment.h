// SPDX-License-Identifier: BSD-3-Clause

// The memory that any schedule holds, and what it must still provide, while the backward of one op
// runs.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/block.h>

namespace remat::detail {

struct BackwardMoment {
  size_t position = 0;  ///< Position of the region
  int64_t held_bytes = 0;
  bool holds_input = false;
  /// The region with only what waits for the op: other ops need nothing, and tensors that are held
  /// anyway have no bytes.
  Block rest;
};

/// The at most `count` moments of a region that hold most. Covers only ops for whose backward all
/// earlier regions wait.
std::vector<BackwardMoment> backward_moments(const Block& block, size_t position, size_t count);

}  // namespace remat::detail
