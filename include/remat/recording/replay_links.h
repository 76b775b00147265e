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

/// For each op of Recording::ops that a replay ran and its region saw, the index of the op of the
/// forward (the first forward, if a replay is replayed again); kNoOp for all others.
REMAT_API std::vector<size_t> forward_ops(const Recording& recording);

/// A replay that ran a region's function, and the ops that the region and the regions inside it
/// saw, as indices into Recording::ops.
struct FunctionReplay {
  size_t replay = 0;  ///< Index in Recording::replays
  uint64_t region = 0;
  std::vector<size_t> forward;  ///< Ops in the forward
  std::vector<size_t> again;    ///< Ops in the replay

  /// False for ops in SAVE and OFFLOAD calls of the region, which do not run again.
  bool runs_again(const OpEvent& op) const { return op.region != region || op.call == 0; }
};

/// All replays by functions, in the order of Recording::replays. If an outer replay created a
/// region, the region's forward is the run inside that outer replay.
REMAT_API std::vector<FunctionReplay> function_replays(const Recording& recording);

/// For each op of Recording::ops: true if the op did not run, because a replay skipped it by a SAVE
/// or OFFLOAD rule.
REMAT_API std::vector<bool> left_out_ops(const Recording& recording);

/// For each node of Recording::nodes: the forward op that made the node; kNoOp if unknown.
REMAT_API std::vector<size_t> ops_of_nodes(const Recording& recording);

}  // namespace remat
