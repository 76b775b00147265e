// SPDX-License-Identifier: BSD-3-Clause

// Export of a recording's memory for PyTorch's memory viewer.
#pragma once

#include <ostream>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

/// Writes a pickle like torch.cuda.memory._dump_snapshot(), for memory on any device: each
/// allocation and free with its time, and the blocks alive at the end. The frames of a block say
/// why it lives: the op that made it, with its region and slot; the node of backward; the line; and
/// its kind. Each block is a segment of its own. Accelerators are numbered by their names ("cuda:1"
/// is device 1); the CPU gets the first free number, 0 if it is the only device.
REMAT_API void write_memory_snapshot(const Recording& recording, std::ostream& out);

}  // namespace remat
