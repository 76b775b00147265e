// SPDX-License-Identifier: BSD-3-Clause

// Where the ops and named calls of regions are reported, if anybody wants to know.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <string_view>

#include <remat/tape/export.h>

namespace remat {

struct NamedCall;
class OpCall;
class Region;
class Tape;

/// Where in a region something happens.
struct TraceScope {
  const Region* region = nullptr;  ///< Of a tape that is cut: the segment,
  const Region* whole = nullptr;   ///< and this is all of it; else the same.
  const Region* parent = nullptr;  ///< The next one outward on the thread; null if there is none.
  bool is_replay = false;
  size_t depth = 0;  ///< Regions around this one on the thread.
  size_t slot = 0;   ///< The number of slots so far.
  size_t kept = 0;   ///< Of tensors that SAVE and OFFLOAD calls keep for autograd, so far.
  const NamedCall* saved_call = nullptr;  ///< The SAVE or OFFLOAD call that runs; null if none.
};

/// Told of what runs in regions. Called on the threads that run it, with no lock held.
class REMAT_API TraceSink {
 public:
  TraceSink() = default;
  TraceSink(const TraceSink&) = delete;
  TraceSink& operator=(const TraceSink&) = delete;
  virtual ~TraceSink() = default;

  /// An op is about to run, with its arguments on the stack; it has run, with its results there,
  /// or else op_threw() follows.
  virtual void before_op(const TraceScope& scope, const OpCall& call) = 0;
  virtual void after_op(const TraceScope& scope, const OpCall& call) = 0;

  /// The same of an op that the handler of a tensor of a Python class runs, inside of the op that
  /// it handles.
  virtual void before_part(const TraceScope& /*scope*/, const OpCall& /*call*/) {}
  virtual void after_part(const TraceScope& /*scope*/, const OpCall& /*call*/) {}

  /// An op, or a part of one, that has begun ends with an exception: its arguments may be gone.
  /// Throws nothing.
  virtual void op_threw(const TraceScope& /*scope*/, const OpCall& /*call*/) {}

  /// A named call begins to run, or a replay has left it out: `what` says which.
  virtual void named_call(const TraceScope& before, const TraceScope& after, const NamedCall& call,
                          std::string_view what) = 0;

  /// The innermost call that named_call() was told of to begin has ended.
  virtual void call_ended(const TraceScope& scope, bool threw) = 0;

  /// Autograd is about to save `tensor`, in an op or outside of ops; it has, or was stopped by an
  /// exception.
  virtual void before_save(const TraceScope& scope, const at::Tensor& tensor) = 0;
  virtual void after_save(const TraceScope& scope, bool threw) = 0;

  /// Backward asks for what the slot of that number of the region holds, which may begin a replay.
  virtual void before_load(const Region& /*region*/, size_t /*slot*/) {}

  /// A replay from a tape begins, on the thread of the backward; it has ended, or thrown. `whole`:
  /// of a tape that is cut, what `region` is a part of.
  virtual void tape_replay(const Region& /*region*/, const Region& /*whole*/, bool /*begins*/) {}

  /// The same of a replay that calls the region's function.
  virtual void function_replay(const Region& /*region*/, bool /*begins*/) {}

  /// A replay from a tape is about to run the record of that number again; it has, and has not
  /// thrown.
  virtual void tape_record(const Tape& /*tape*/, size_t /*record*/, bool /*begins*/) {}

  /// A replay has what it needs and stops, in the middle of an op or at a named call.
  virtual void replay_stops(const TraceScope& scope) = 0;
};

/// Null: nobody. Set it while no region runs; never freed while it is set.
extern REMAT_API std::atomic<TraceSink*> trace_sink;

}  // namespace remat
