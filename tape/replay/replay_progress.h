// SPDX-License-Identifier: BSD-3-Clause

// How far a replay has got, and how it ends.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <exception>
#include <string>
#include <utility>

#include <remat/tape/op_call.h>
#include <remat/tape/region.h>
#include <remat/tape/region_body.h>
#include <remat/tape/trace_sink.h>

#include "replay_comparison.h"
#include "replay_memory.h"

namespace remat {

/// Gives each tensor that autograd saves to the slot at the same place in the forward's order,
/// compares the two, and stops the replay when every slot that is needed is filled. A large class:
/// what it was given, how far it is, and each way in which it may end.
class ReplayProgress {
 public:
  ReplayProgress(const Region& region, const RegionBody& body, ReplayedSlots& slots,
                 const ReplayComparison& comparison, ReplayMemory& memory);
  ReplayProgress(const ReplayProgress&) = delete;
  ReplayProgress& operator=(const ReplayProgress&) = delete;

  /// True if what runs now is the region's function, not a backward inside it.
  bool is_own_code() const;
  /// True if what it does is compared with the forward.
  bool compares() const {
    return compares_backward() && region_.determinism() != Determinism::kNone;
  }
  /// The same of backwards inside.
  bool compares_backward() const {
    return region_.intercept() && !stopped_ && !comparison_ended_ && is_watched() && is_own_code();
  }
  /// The function has asked is_recomputing().
  void end_comparison() { comparison_ended_ = true; }
  bool comparison_ended() const { return comparison_ended_; }

  /// While not watched, what runs is no part of what the replay does: in a SAVE call that threw in
  /// the forward, and runs again to throw again, and until the results of a skipped one are asked
  /// for. Calls nest.
  bool is_watched() const { return unwatched_ == 0; }
  void look_away() { ++unwatched_; }
  void watch_again() { --unwatched_; }

  /// An op is about to run; it has run. May stop.
  void begin_op(const OpCall& call) {
    if (C10_UNLIKELY(std::exchange(stops_before_op_, false))) stop();
    op_.info = &call.info();
    op_.writes = call.info().writes() && writes_any_argument(call);
  }
  void end_op() {
    op_.info = nullptr;
    op_.writes = false;
    if (C10_UNLIKELY(op_.stops_after)) stop();
  }

  /// Autograd has saved `tensor`, whose data is `value`: for the next slot. May stop.
  void receive(const at::Tensor& tensor, const at::Tensor& value);
  /// Fills slot `index`, the next one, from a call that does not run.
  void fill(size_t index, const at::Tensor& value);
  /// Goes on to the slot `count` further: these belong to a call that threw.
  void pass_slots(size_t count) { count_ += count; }
  /// How many slots have been reached.
  size_t slot_count() const { return count_; }

  /// Throws the body's stop, or lets what cannot be left by an exception end first.
  void stop();
  void stop_if_complete();
  /// True once every needed slot is filled and the function was told to stop: what escapes from it
  /// then is the stop.
  bool stopped() const { return stopped_; }

  bool failed() const { return error_ != nullptr; }
  void fail(std::exception_ptr error) {
    if (!error_) error_ = std::move(error);  // the function may have caught the first one
  }
  /// Calls `fn`; what it throws, but for the stop, is what this replay fails with, even if the
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
  /// The same for errors of LibTorch's kind, as remat's own are. Others come from code of the user
  /// that runs when an argument is looked at, and came in the forward, too.
  template <class Fn>
  decltype(auto) or_fail_unless_users(Fn&& fn) {
    try {
      return std::forward<Fn>(fn)();
    } catch (const c10::Error&) {
      if (!stopped_) fail(std::current_exception());
      throw;
    }
  }

  /// Raise what went wrong although the function has returned: a mismatch that it caught; slots
  /// that it did not reach.
  void check_no_error() const {
    if (error_) std::rethrow_exception(error_);
  }
  void check_all_slots() const;

  TraceScope trace_scope() const {
    return {.region = &region_, .whole = &region_, .is_replay = true, .slot = count_};
  }

 private:
  static bool writes_any_argument(const OpCall& call);
  bool is_same_part(const Slot& slot, const at::Tensor& tensor) const;
  bool is_saved_by_same_op(const Slot& slot) const;
  bool is_saved_by_custom_function() const;
  void check_position(const at::Tensor& tensor) const;
  void check(const at::Tensor& tensor) const;
  [[noreturn]] void mismatch(size_t index, const std::string& expected, const std::string& got,
                             const std::string& detail) const;

  const Region& region_;
  const RegionBody& body_;
  ReplayedSlots& values_;
  const ReplayComparison& comparison_;
  ReplayMemory& memory_;
  const size_t slot_end_;  // one past the last slot that is to be filled
  /// What it was when the replay began.
  struct Begin {
    int graph_task;
    int uncaught_exceptions;
  };
  const Begin begin_;
  struct Op {
    const OpInfo* info = nullptr;  // null: none runs
    bool writes = false;           // one of its arguments
    bool stops_after = false;
  };
  Op op_;
  bool stops_before_op_ = false;  // the next one
  size_t count_ = 0;
  size_t unwatched_ = 0;
  bool stopped_ = false;
  bool comparison_ended_ = false;
  std::exception_ptr error_;
};

}  // namespace remat
