// SPDX-License-Identifier: BSD-3-Clause

// What any schedule holds, and still has to provide for, while the backward of one op runs.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/block.h>

namespace remat::detail {

struct BackwardMoment {
  size_t position = 0;  ///< Of the region
  int64_t held_bytes = 0;
  bool holds_input = false;
  /// The region with what waits for the op: other ops need nothing in it, and held tensors have no
  /// bytes.
  Block rest;
};

/// The moments of a region that hold most, at most `count`. Only of ops whose backward all regions
/// before wait for.
std::vector<BackwardMoment> backward_moments(const Block& block, size_t position, size_t count);

}  // namespace remat::detail
