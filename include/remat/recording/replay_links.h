// SPDX-License-Identifier: BSD-3-Clause

// Which op of a forward each replayed op is.
#pragma once

#include <cstddef>
#include <vector>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

constexpr size_t kNoOp = static_cast<size_t>(-1);

/// For each of Recording::ops that a replay runs again and its region sees, the place in
/// Recording::ops of the op of the forward (through replays of replays); else kNoOp.
REMAT_API std::vector<size_t> forward_ops(const Recording& recording);

/// For each of Recording::nodes the op of the forward that made it; kNoOp: it is not known.
REMAT_API std::vector<size_t> ops_of_nodes(const Recording& recording);

}  // namespace remat
