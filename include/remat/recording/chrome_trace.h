// SPDX-License-Identifier: BSD-3-Clause

// Export of a recording for trace viewers.
#pragma once

#include <ostream>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

/// Writes JSON in the Trace Event Format, as torch's profiler does, for chrome://tracing and
/// Perfetto. Each thread has a track of ops, one of replays with their ops, and one of nodes of
/// backward. Bytes alive are a counter, the program's MarkEvents are instants, and arrows lead from
/// ops of the forward to their replays.
/// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
REMAT_API void write_chrome_trace(const Recording& recording, std::ostream& out);

}  // namespace remat
