// SPDX-License-Identifier: BSD-3-Clause

// A recording's memory for PyTorch's memory viewer.
#pragma once

#include <cstdint>
#include <ostream>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

enum class SnapshotFormat : uint8_t {
  kPickle,  ///< What pytorch.org/memory_viz and torch.cuda._memory_viz read
  kJson,    ///< The same content. To read a pickle runs what is in it, to read JSON does not.
};

/// Writes what torch.cuda.memory._dump_snapshot() does, of memory on any device: each allocation
/// and free with its time, and what is alive in the end. The frames of a block say why it lives:
/// the op that made it, with its region and slot; the node of backward; the line; and its kind.
/// Each block is a segment of its own. Accelerators have the numbers of their names ("cuda:1" is
/// device 1), and the CPU the first that is free: 0 where nothing else is.
REMAT_API void write_memory_snapshot(const Recording& recording, SnapshotFormat format,
                                     std::ostream& out);

}  // namespace remat
