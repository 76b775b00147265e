// SPDX-License-Identifier: BSD-3-Clause

// Links from replayed ops to the ops of their forward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

constexpr size_t kNoOp = static_cast<size_t>(-1);

/// For each of Recording::ops that a replay runs again and its region sees: the index in
/// Recording::ops of the forward's op (through replays of replays). kNoOp for all other ops.
REMAT_API std::vector<size_t> forward_ops(const Recording& recording);

/// A replay by a region's function, and the ops that the region and the regions inside it see, as
/// indices into Recording::ops.
struct FunctionReplay {
  size_t replay = 0;  ///< Index in Recording::replays
  uint64_t region = 0;
  std::vector<size_t> forward;
  std::vector<size_t> again;

  /// False for ops in SAVE and OFFLOAD calls of the region, which do not run again.
  bool runs_again(const OpEvent& op) const { return op.region != region || op.call == 0; }
};

/// All replays by functions, in the order of Recording::replays. The forward of a region that an
/// outer replay created is what ran in that replay.
REMAT_API std::vector<FunctionReplay> function_replays(const Recording& recording);

/// For each of Recording::ops: true if it did not run, because a replay skipped it by a SAVE or
/// OFFLOAD rule.
REMAT_API std::vector<bool> left_out_ops(const Recording& recording);

/// For each of Recording::nodes: the forward op that made it; kNoOp if unknown.
REMAT_API std::vector<size_t> ops_of_nodes(const Recording& recording);

}  // namespace remat
