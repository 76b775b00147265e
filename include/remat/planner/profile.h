// SPDX-License-Identifier: BSD-3-Clause

// A planner's description of a model: its regions, their ops and tensors, times and bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <remat/policy/export.h>

namespace remat {

/// A storage of a block. Views of it and in-place results share its name.
struct ProfileTensor {
  std::string name;  ///< Unique in its block type; never "in"
  int64_t bytes = 0;
};

struct ProfileOp {
  std::string name;  ///< Unique in its block type
  std::string kind;  ///< "mm", "bmm", "ew" or anything else; only displayed
  double fwd_us = 0;
  double bwd_us = 0;
  int64_t fwd_tmp_bytes = 0;     ///< Workspace of the forward, freed when the op has run
  int64_t bwd_tmp_bytes = 0;     ///< Workspace during its backward
  std::vector<std::string> ins;  ///< Names of earlier tensors, or "in" for the region's input
  /// The first out has a gradient of the same size; the others (masks, statistics) have none.
  std::vector<ProfileTensor> outs;
  /// Tensors that the op's backward reads: "in", earlier tensors, or the op's own outs.
  std::vector<std::string> bwd_needs;
};

/// A kind of region: one input, one output, and its ops in execution order.
struct BlockType {
  std::string name;
  int64_t input_bytes = 0;
  bool input_grad = true;  ///< False: nothing before this region needs a gradient (token ids)
  std::string output;      ///< The first out of some op; input of the next region
  std::vector<ProfileOp> ops;
};

/// Consecutive regions that may run as one region.
struct MergePattern {
  std::vector<int> pattern;  ///< Indices into Profile::block_types
  /// Block type of the merged region. Its ops are those of the pattern, in order, with the same
  /// names, times and bytes; its tensors may have other names.
  int block_type = 0;
};

/// A chain of regions. Bytes are activations, their gradients and workspaces; parameters, their
/// gradients and optimizer states are a constant that the caller subtracts from the device's
/// memory. Copies are independent, and threads may read one profile at the same time.
struct REMAT_API Profile {
  std::string name;
  std::vector<BlockType> block_types;
  std::vector<int> chain;  ///< Index into block_types per region, in execution order
  std::vector<MergePattern> merge_patterns;

  /// Reads the format of docs/reference/plan-files.md and
  /// planner/chain/schema/profile.schema.json. Keys of test data (frontier, meta and such) are
  /// skipped; an ideal_time is compared with the sum over the chain.
  /// @param source names the text in errors, usually its path.
  /// @throws std::invalid_argument `[profile] source:line: place: expected ..., got .... What to
  /// do.`
  static Profile from_json(std::string_view text, const std::string& source = "profile");

  /// The text that from_json reads back to an equal profile.
  std::string to_json() const;

  /// Checks everything that planning relies on: names, ranges, and sizes that match from region to
  /// region.
  /// @throws std::invalid_argument as from_json, but the message has no line after `source`.
  void validate(const std::string& source = "profile") const;

  /// 16 hex digits over everything that a plan depends on. A plan identifies its profile by them.
  std::string digest() const;
};

}  // namespace remat
