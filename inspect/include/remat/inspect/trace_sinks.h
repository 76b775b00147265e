// SPDX-License-Identifier: BSD-3-Clause

// Lets several trace listeners run at once, since engine/ reports to a single one.
#pragma once

#include <memory>

#include <remat/engine/trace_sink.h>

namespace remat {

/// Passes each event on to `sink`, after the sinks that were added before it. Sinks may come and go
/// while regions run.
void add_trace_sink(std::shared_ptr<TraceSink> sink);
void remove_trace_sink(const TraceSink& sink);

}  // namespace remat
