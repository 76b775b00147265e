// SPDX-License-Identifier: BSD-3-Clause

// Reporting the ops and named calls of regions to a listener.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ScopeExit.h>

#include <atomic>
#include <cstddef>
#include <string_view>

#include <remat/engine/export.h>

namespace remat {

struct NamedCall;
class OpCall;
class Region;
class Tape;

/// Where in a region an event occurs.
struct TraceScope {
  const Region* region = nullptr;  ///< The innermost region, or its segment if its tape is cut.
  const Region* whole = nullptr;   ///< The whole region; equal to `region` without cuts.
  const Region* parent = nullptr;  ///< The next region outward on the thread, or null.
  bool is_replay = false;
  size_t depth = 0;  ///< Number of regions around this one on the thread.
  size_t slot = 0;   ///< Number of slots so far.
  size_t kept = 0;   ///< Number of tensors that SAVE and OFFLOAD calls have kept for autograd.
  const NamedCall* saved_call = nullptr;  ///< The running SAVE or OFFLOAD call, or null.
};

/// Listener for ops and calls in regions. Called on the thread that runs them, with no lock held.
class REMAT_API TraceSink {
 public:
  TraceSink() = default;
  TraceSink(const TraceSink&) = delete;
  TraceSink& operator=(const TraceSink&) = delete;
  virtual ~TraceSink() = default;

  /// An op is about to run, with its arguments on the stack. Then after_op() follows, with the op's
  /// results on the stack, or op_threw().
  virtual void before_op(const TraceScope& /*scope*/, const OpCall& /*call*/) {}
  virtual void after_op(const TraceScope& /*scope*/, const OpCall& /*call*/) {}

  /// Like before_op() and after_op(), for an op that the handler of a tensor subclass runs inside
  /// the handled op.
  virtual void before_part(const TraceScope& /*scope*/, const OpCall& /*call*/) {}
  virtual void after_part(const TraceScope& /*scope*/, const OpCall& /*call*/) {}

  /// An op (or a part) that has begun ends with an exception; its arguments may be gone. Must not
  /// throw.
  virtual void op_threw(const TraceScope& /*scope*/, const OpCall& /*call*/) {}

  /// Called when a named call begins or a replay has left one out. `what` is "begins" or
  /// "is left out".
  virtual void named_call(const TraceScope& /*before*/, const TraceScope& /*after*/,
                          const NamedCall& /*call*/, std::string_view /*what*/) {}

  /// The innermost call that named_call() reported as begun has ended.
  virtual void call_ended(const TraceScope& /*scope*/, bool /*threw*/) {}

  /// Autograd is about to save `tensor`, in an op or outside ops. after_save() follows even if an
  /// exception ends the save.
  virtual void before_save(const TraceScope& /*scope*/, const at::Tensor& /*tensor*/) {}
  virtual void after_save(const TraceScope& /*scope*/, bool /*threw*/) {}

  /// Backward unpacks slot `slot` of the region, which may start a replay.
  virtual void before_load(const Region& /*region*/, size_t /*slot*/) {}

  /// A tape replay begins or has ended (or thrown), on the thread of the backward pass. `whole` is
  /// the region that `region` is a segment or group of, if its tape is cut.
  virtual void tape_replay(const Region& /*region*/, const Region& /*whole*/, bool /*begins*/) {}

  /// Like tape_replay(), for a replay that calls the region's function.
  virtual void function_replay(const Region& /*region*/, bool /*begins*/) {}

  /// A tape replay is about to run record `record`, or has run it without an exception.
  virtual void tape_record(const Tape& /*tape*/, size_t /*record*/, bool /*begins*/) {}

  /// A replay is complete and stops, in the middle of an op or at a named call.
  virtual void replay_stops(const TraceScope& /*scope*/) {}
};

/// The listener, or null. Set it while no region runs; a sink must live until it is replaced.
extern REMAT_API std::atomic<TraceSink*> trace_sink;

/// Calls `report(sink, begins)` if there is a sink: now, and when the returned object is destroyed.
template <class Report>
auto traced(Report report) {
  const auto call = [report](bool begins) {
    if (TraceSink* const sink = trace_sink.load(std::memory_order_acquire)) report(*sink, begins);
  };
  call(/*begins=*/true);
  return c10::make_scope_exit([call] { call(/*begins=*/false); });
}

}  // namespace remat
