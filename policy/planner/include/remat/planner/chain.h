// SPDX-License-Identifier: BSD-3-Clause

// A chain of regions in numbers: what the planner plans, whoever names it.
#pragma once

#include <vector>

#include <remat/planner/block.h>

namespace remat::detail {

/// Consecutive regions that may run as one region.
struct ChainMerge {
  std::vector<int> pattern;  ///< Indices into Chain::types
  int type = 0;              ///< The merged type; its ops are those of the pattern, in order.
};

struct Chain {
  std::vector<Block> types;
  std::vector<int> regions;  ///< Per region in execution order, an index into types.
  std::vector<ChainMerge> merges;
};

}  // namespace remat::detail
