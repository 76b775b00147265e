// SPDX-License-Identifier: BSD-3-Clause

// A recording for Perfetto.
#pragma once

#include <ostream>

#include <remat/policy/export.h>
#include <remat/recording/recording.h>

namespace remat {

/// Writes a trace in Perfetto's own format, for ui.perfetto.dev and queries in SQL: per thread a
/// track of what runs, one of replays and one of nodes of backward; bytes alive by kind as
/// counters; marks; and a flow from each op of a forward to each op that runs it again. Times are
/// nanoseconds since the recording began. A third of the size of what write_chrome_trace() writes.
/// https://perfetto.dev/docs/reference/trace-packet-proto
REMAT_API void write_perfetto_trace(const Recording& recording, std::ostream& out);

}  // namespace remat
