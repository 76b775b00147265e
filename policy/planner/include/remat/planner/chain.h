// SPDX-License-Identifier: BSD-3-Clause

// A chain of regions in numbers: what the planner plans, whoever names it.
#pragma once

#include <vector>

#include <remat/planner/block.h>
#include <remat/planner/profile.h>

namespace remat::detail {

struct Chain {
  std::vector<Block> types;
  std::vector<int> regions;          ///< Per region in execution order, an index into types.
  std::vector<MergePattern> merges;  ///< Its numbers are indices into types.
};

}  // namespace remat::detail
