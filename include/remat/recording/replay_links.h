// SPDX-License-Identifier: BSD-3-Clause

// Which op of a forward each replayed op is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

constexpr size_t kNoOp = static_cast<size_t>(-1);

/// For each of Recording::ops that a replay runs again and its region sees, the place in
/// Recording::ops of the op of the forward (through replays of replays); else kNoOp.
REMAT_API std::vector<size_t> forward_ops(const Recording& recording);

/// A region that has run again by its function, and the ops of it and of regions inside that it
/// sees, as places in Recording::ops.
struct FunctionReplay {
  size_t replay = 0;  ///< In Recording::replays
  uint64_t region = 0;
  std::vector<size_t> forward;
  std::vector<size_t> again;

  /// False for what SAVE and OFFLOAD calls of the region have run: that does not run again.
  bool runs_again(const OpEvent& op) const { return op.region != region || op.call == 0; }
};

/// In the order of Recording::replays. Of a region that an outer replay has made, its forward is
/// what ran in that replay.
REMAT_API std::vector<FunctionReplay> function_replays(const Recording& recording);

/// For each of Recording::ops, whether it did not run: a replay came to it, and left it out since a
/// rule SAVEs or OFFLOADs it.
REMAT_API std::vector<bool> left_out_ops(const Recording& recording);

/// For each of Recording::nodes the op of the forward that made it; kNoOp: it is not known.
REMAT_API std::vector<size_t> ops_of_nodes(const Recording& recording);

}  // namespace remat
