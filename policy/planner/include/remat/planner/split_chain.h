// SPDX-License-Identifier: BSD-3-Clause

// Cuts large regions of a chain where a single tensor passes, so that parts are small enough to try
// all policies of.
#pragma once

#include <vector>

#include <remat/planner/chain.h>

namespace remat::detail {

/// A region of a split chain, as a part of a region of the original chain.
struct RegionPart {
  int original = 0;  ///< Position in the original chain
  int part = 0;      ///< Index of this part in the original region
  size_t first_op = 0;
};

struct SplitChain {
  Chain chain;  ///< Types of the original keep their indices; a cut type is a merge of its parts.
  std::vector<RegionPart> parts;  ///< Per region of `chain`
};

constexpr size_t split_above = 18;  ///< Ops up to which pareto_options tries all policies

/// Number of ops in the largest part that a region is cut into.
size_t largest_part(const Block& block, size_t max_ops);

/// Types of more than `max_ops` ops become parts of at most so many, as far as single tensors
/// allow. A cut type may run as one region if max_region_ops allow.
SplitChain split_chain(Chain chain, size_t max_ops);

}  // namespace remat::detail
