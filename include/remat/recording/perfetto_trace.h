// SPDX-License-Identifier: BSD-3-Clause

// Export of a recording for Perfetto.
#pragma once

#include <ostream>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

/// Writes a trace in Perfetto's native format, for ui.perfetto.dev and SQL queries. Each thread has
/// a track of what runs, one of replays and one of nodes of backward. Bytes alive by kind are
/// counters, marks are shown, and a flow leads from each op of a forward to each op that replays
/// it. Times are nanoseconds since the recording began. A third of the size of
/// write_chrome_trace()'s file. https://perfetto.dev/docs/reference/trace-packet-proto
REMAT_API void write_perfetto_trace(const Recording& recording, std::ostream& out);

}  // namespace remat
