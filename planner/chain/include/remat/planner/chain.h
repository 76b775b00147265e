// SPDX-License-Identifier: BSD-3-Clause

// A chain of regions in numbers, without the names of a profile: the planner's input.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/block.h>
#include <remat/planner/options.h>
#include <remat/planner/profile.h>

namespace remat::detail {

/// A region of a split chain, as a part of a region of the original chain.
struct RegionPart {
  int original = 0;     ///< Position in the original chain
  int part = 0;         ///< Index of this part in the original region
  size_t first_op = 0;  ///< Index of the part's first op in the original region
};

struct Chain {
  std::vector<Block> types;
  std::vector<int> regions;            ///< Per region in execution order, an index into types.
  std::vector<MergePattern> merges;    ///< With indices into `types`
  std::vector<RegionPart> parts = {};  ///< Per region of a split chain
};

/// The ops of several types, one after the other, as one type.
Block merged_block(const std::vector<Block>& types, const std::vector<int>& pattern);

constexpr size_t split_above = 18;  ///< Larger regions are split, so that parts get exact options.

/// Number of ops in the largest part into which split_chain() would cut the region.
size_t largest_part(const Block& block, size_t max_ops);

/// Cuts types of more than `max_ops` ops where a single tensor passes, into parts of at most
/// `max_ops` ops where possible. Existing types keep their indices. The parts of a cut type with at
/// most max_region_ops ops become a merge, because they may still run as one region.
Chain split_chain(Chain chain, size_t max_ops);

/// Consecutive regions that may run as one.
struct Merge {
  std::vector<int> pattern;  ///< Types, as in ChainModel::chain
  int type = 0;              ///< The type of the region that they become
};

struct ChainModel {
  /// Tries all options of regions of at most `exact_ops` ops.
  ChainModel(const Chain& from, int exact_ops);

  size_t length() const { return chain.size(); }
  const Block& block(size_t position) const { return types[chain[position]]; }
  int64_t input_bytes(size_t position) const { return block(position).input_bytes(); }
  int64_t output_bytes(size_t position) const { return block(position).output_bytes(); }
  bool matches(const Merge& merge, size_t first, size_t last) const;

  std::vector<Block> types;
  std::vector<std::vector<Option>> options;      ///< Per type
  std::vector<int64_t> forward_only_peak_bytes;  ///< Per type
  std::vector<int> chain;
  std::vector<Merge> merges;
  Ticks ideal_time = 0;
};

}  // namespace remat::detail
