// SPDX-License-Identifier: BSD-3-Clause

// Splits regions with many ops at places that a single tensor crosses.
#pragma once

#include <vector>

#include <remat/planner/profile.h>

namespace remat::detail {

struct SplitProfile {
  Profile profile;            ///< Has more regions; a split type is a merged type of its parts
  std::vector<int> part;      ///< Per region: its part of the original region
  std::vector<int> original;  ///< Per region: the original's position
};

constexpr size_t split_above = 18;  ///< Number of ops up to which pareto_options tries all policies

/// Number of ops in the largest part that a type is split into.
size_t largest_part(const BlockType& type, size_t max_ops);

/// Splits types of more than `max_ops` ops into parts of at most that many, as far as single
/// tensors allow. A split type may still run as one region if it has at most max_region_ops.
SplitProfile split_regions(const Profile& profile, size_t max_ops);

}  // namespace remat::detail
