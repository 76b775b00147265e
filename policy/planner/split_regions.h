// SPDX-License-Identifier: BSD-3-Clause

// Cuts regions of many ops where a single tensor passes.
#pragma once

#include <vector>

#include <remat/planner/profile.h>

namespace remat::detail {

struct SplitProfile {
  Profile profile;            ///< With more regions; a cut type is a merged type of its parts.
  std::vector<int> part;      ///< Per region of it, which part of the original region
  std::vector<int> original;  ///< Per region of it, the original's position
};

constexpr size_t split_above = 18;  ///< Ops up to which pareto_options tries all policies

/// Ops of the largest part that a region is cut into.
size_t largest_part(const BlockType& type, size_t max_ops);

/// Types of more than `max_ops` ops become parts of at most so many, as far as single tensors
/// allow. A cut type may run as one region if max_region_ops allow.
SplitProfile split_regions(const Profile& profile, size_t max_ops);

}  // namespace remat::detail
