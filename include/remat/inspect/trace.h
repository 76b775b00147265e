// SPDX-License-Identifier: BSD-3-Clause

// A trace with a line of text for each op and named call of a region, in forward and replays.
#pragma once

#include <memory>
#include <ostream>

#include <remat/tape/export.h>

namespace remat {

/// While alive, writes a line to `out` for each op that runs in a region, on any thread: phase,
/// region, op with its arguments, dispatch keys, and what became of the tensors it saved. Also
/// writes a line where a named call begins and ends, and for each tensor that is saved outside of
/// ops. docs/reference/reports.md explains the lines. Throws if the process already has a Trace.
/// Construct and destroy it while no region runs.
class REMAT_API Trace {
 public:
  explicit Trace(std::ostream& out);
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;
  ~Trace();

 private:
  class Writer;
  std::shared_ptr<Writer> writer_;
};

namespace detail {

/// Starts a trace for the whole process if the environment variable REMAT_TRACE is set: to
/// "stderr", or to a file, which is overwritten. Runs once; throws ValueError if the file cannot be
/// opened.
REMAT_API bool trace_from_environment();

inline const bool kTraced = trace_from_environment();

}  // namespace detail
}  // namespace remat
