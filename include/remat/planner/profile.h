// SPDX-License-Identifier: BSD-3-Clause

// What a planner knows of a model: its regions, their ops and tensors, times and bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <remat/policy/export.h>

namespace remat {

/// A tensor means a storage: views and in-place results share one name.
struct ProfileTensor {
  std::string name;  ///< Unique in its block type; never "in".
  int64_t bytes = 0;
};

struct ProfileOp {
  std::string name;  ///< Unique in its block type.
  std::string kind;  ///< "mm", "bmm", "ew" or anything else; only shown.
  double fwd_us = 0;
  double bwd_us = 0;
  int64_t fwd_tmp_bytes = 0;     ///< Workspace while it runs forward, freed after it.
  int64_t bwd_tmp_bytes = 0;     ///< Workspace while its backward runs.
  std::vector<std::string> ins;  ///< Names of earlier tensors, or "in" for the region's input.
  /// The first has a gradient of its own size, the others (masks, statistics) have none.
  std::vector<ProfileTensor> outs;
  std::vector<std::string>
      bwd_needs;  ///< What its backward reads: "in", earlier tensors, own outs.
};

/// A kind of region: one input, one output, ops in the order they run.
struct BlockType {
  std::string name;
  int64_t input_bytes = 0;
  bool input_grad = true;  ///< false: nothing before this region needs a gradient (token ids).
  std::string output;      ///< The first out of some op; the next region's input.
  std::vector<ProfileOp> ops;
};

/// Consecutive regions that may run as one region.
struct MergePattern {
  std::vector<int> pattern;  ///< Indices into Profile::block_types.
  /// Its ops are those of the pattern, in order, with the same names and numbers; its tensors may
  /// have other names.
  int block_type = 0;
};

/// A chain of regions. Bytes are activations, their gradients and workspaces; parameters, their
/// gradients and optimizer states are a constant that the caller subtracts from the device's
/// memory. A plain value: copies are independent, and threads may read one at the same time.
struct REMAT_API Profile {
  std::string name;
  std::vector<BlockType> block_types;
  std::vector<int> chain;  ///< Per region in execution order, an index into block_types.
  std::vector<MergePattern> merge_patterns;

  /// Reads what docs/planner.md and policy/planner/schema/profile.schema.json describe. Keys of
  /// test data (frontier, meta and such) are skipped; an ideal_time is compared with the sum over
  /// the chain.
  /// @param source names the text in errors, usually its path.
  /// @throws std::invalid_argument `[profile] source:line: place: expected ..., got .... What to
  /// do.`
  static Profile from_json(std::string_view text, const std::string& source = "profile");

  /// The text that from_json reads back to an equal profile.
  std::string to_json() const;

  /// Checks all that planning relies on: names, sizes that fit from region to region, ranges.
  /// @throws std::invalid_argument as from_json, with source for "source:line".
  void validate(const std::string& source = "profile") const;

  /// 16 hex digits over everything that a plan depends on; a plan names the profile it was made for
  /// by it.
  std::string digest() const;
};

}  // namespace remat
