// SPDX-License-Identifier: BSD-3-Clause

// A trace with a line of text for each op and named call of a region, in forward and replays.
#pragma once

#include <memory>
#include <ostream>

#include <remat/engine/export.h>

namespace remat {

/// While alive, writes a line to `out` for each op that runs in a region, on any thread: phase,
/// region, op with its arguments, dispatch keys, and what became of tensors that it saved. Also
/// writes a line where a named call begins and ends, and for each tensor that is saved outside of
/// ops. docs/reference/reports.md explains the lines. Throws if the process already has a Trace.
/// Construct and destroy it while no region runs. REMAT_TRACE in the environment makes a Trace to
/// stderr or a file when the process begins to use remat.
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

}  // namespace remat
