// SPDX-License-Identifier: BSD-3-Clause

// The progress of a replay, and how it ends.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <exception>
#include <string>
#include <utility>

#include <remat/engine/export.h>
#include <remat/engine/op_call.h>
#include <remat/engine/region.h>
#include <remat/engine/region_body.h>
#include <remat/engine/trace_sink.h>

#include "replay_comparison.h"
#include "replay_memory.h"

namespace remat {

/// Assigns each tensor that autograd saves to the slot at the same position in the forward's order,
/// compares the two, and stops the replay when every needed slot is filled.
class REMAT_API ReplayProgress {
 public:
  ReplayProgress(const Region& region, const RegionBody& body, ReplayedSlots& slots,
                 const ReplayComparison& comparison);
  ReplayProgress(const ReplayProgress&) = delete;
  ReplayProgress& operator=(const ReplayProgress&) = delete;

  /// True if the running code is the region's function, not a backward inside it.
  bool is_own_code() const;
  /// True if the running code is compared with the forward.
  bool compares() const {
    return compares_backward() && region_.determinism() != Determinism::kNone;
  }
  /// Like compares(), for backward passes inside the function.
  bool compares_backward() const {
    return region_.intercept() && !stopped_ && !comparison_.has_ended() && is_watched() &&
           is_own_code();
  }

  /// False while the running code is neither compared nor fills slots: a SAVE call that threw in
  /// the forward runs to throw again, or a skipped call has no results yet. look_away() nests.
  bool is_watched() const { return unwatched_ == 0; }
  void look_away() { ++unwatched_; }
  void watch_again() { --unwatched_; }

  /// True if the next op, which does not run, stops the replay.
  bool stops_before_next() const { return op_.stops_before_next; }
  /// begin_op() is called before an op runs, end_op() afterwards. Both may stop the replay.
  void begin_op(const OpCall& call) {
    if (C10_UNLIKELY(std::exchange(op_.stops_before_next, false))) stop();
    op_.info = &call.info();
    op_.saves_written = false;
  }
  void end_op() {
    op_.info = nullptr;
    op_.saves_written = false;
    if (C10_UNLIKELY(op_.stops_after)) stop_if_complete();
  }

  /// `call`, whose kernel is about to run, writes arguments.
  void note_written(const OpCall& call);
  /// `call`, whose kernel is about to run, is the forward's last op.
  void note_last_op(const OpCall& call);

  /// Autograd has saved `tensor`, whose data is `value`: fills the next slot. May stop the replay.
  void receive(const at::Tensor& tensor, const at::Tensor& value);
  /// Fills slot `index`, the next one, for a call that does not run.
  void fill(size_t index, const at::Tensor& value);
  /// Skips `count` slots, which belong to a call that threw.
  void pass_slots(size_t count) { count_ += count; }
  /// Number of slots passed.
  size_t slot_count() const { return count_; }

  /// Throws the body's stop. Only returns if no exception may leave the running code (a backward, a
  /// destructor). That code then runs to its end first.
  void stop();
  /// Stops, or lets the function return, if every needed slot is filled. `saved` is the tensor that
  /// autograd has just saved, if any.
  void stop_if_complete(const at::Tensor* saved = nullptr);
  /// True once every needed slot is filled and the function was told to stop. From then on an
  /// exception that leaves the function counts as the stop.
  bool stopped() const { return stopped_; }

  bool failed() const { return error_ != nullptr; }
  void fail(std::exception_ptr error) {
    if (!error_) error_ = std::move(error);  // The function may have caught the first error.
  }
  /// Calls `fn`. An exception of `fn`, except the stop, becomes the replay's error, even if the
  /// region's function catches it.
  template <class Fn>
  decltype(auto) or_fail(Fn&& fn) {
    try {
      return std::forward<Fn>(fn)();
    } catch (...) {
      if (!stopped_) fail(std::current_exception());
      throw;
    }
  }
  /// Like or_fail(), for c10::Error only, which includes remat's errors. Other exceptions come from
  /// user code that runs when an argument is read, and that threw in the forward, too.
  template <class Fn>
  decltype(auto) or_fail_unless_users(Fn&& fn) {
    try {
      return std::forward<Fn>(fn)();
    } catch (const c10::Error&) {
      if (!stopped_) fail(std::current_exception());
      throw;
    }
  }

  /// Call both after the function has returned. They raise a mismatch that the function caught, or
  /// the error for slots that it did not reach.
  void check_no_error() const {
    if (error_) std::rethrow_exception(error_);
  }
  void check_all_slots() const;

  TraceScope trace_scope() const {
    return {.region = &region_, .whole = &region_, .is_replay = true, .slot = count_};
  }

 private:
  bool is_written(const at::Tensor& tensor) const;
  bool is_saved_by_same_op(const Slot& slot) const;
  bool is_saved_by_custom_function() const;
  bool is_before_last_kernel(const at::Tensor& saved) const;
  void check_position(const at::Tensor& tensor) const;
  void check(const at::Tensor& tensor) const;
  [[noreturn]] void mismatch(size_t index, const std::string& expected, const std::string& got,
                             const std::string& detail) const;

  const Region& region_;
  const RegionBody& body_;
  ReplayedSlots& values_;
  const ReplayComparison& comparison_;
  const size_t slot_end_;  // One past the last slot to be filled.
  /// State when the replay began.
  struct Begin {
    int graph_task;
    int uncaught_exceptions;
  };
  const Begin begin_;
  struct Op {
    const OpInfo* info = nullptr;              // Null if no op runs.
    c10::SmallVector<const void*, 2> written;  // Memory of the arguments that the op writes.
    bool saves_written = false;                // Autograd has saved one of `written`.
    bool stops_after = false;
    bool stops_before_next = false;  // Stop before the next op.
  };
  Op op_;
  /// The forward's last op, if the stop may leave out its kernel.
  struct LastOp {
    c10::SmallVector<const c10::TensorImpl*, 6> arguments;  // Only identities.
    bool makes_none = false;  // All results are arguments that the op writes.
  };
  LastOp last_op_;
  size_t count_ = 0;
  size_t unwatched_ = 0;
  bool stopped_ = false;
  std::exception_ptr error_;
};

}  // namespace remat
