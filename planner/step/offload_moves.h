// SPDX-License-Identifier: BSD-3-Clause

// Kept values that leave the device: when an offload engine sends them, and how long compute waits.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/policy/offload_terms.h>

#include "copy_timeline.h"
#include "step_needs.h"

namespace remat::detail {

/// Note [Peaks with OFFLOAD]
/// The speed of copies decides how long a step takes, but not its peak, because an engine copies
/// out at most max_leaving_bytes at once, and prefetches at most prefetch_bytes. So an offloaded
/// value counts in full until it is sent, then as part of the leaving bytes, then as part of the
/// prefetched bytes until a replay asks for it, and in full again while it is in use. A value is
/// sent with the first put after the program has dropped it, and stays if there is no such put.
class OffloadMoves {
 public:
  /// All arguments must outlive this object.
  OffloadMoves(const StepGraph& graph, const StepUnits& units, const OffloadTerms& terms);

  /// True if a plan that keeps the value could save memory by offloading it.
  bool may_move(int32_t value) const;

  /// Begins a step: chooses the values that are offloaded, and adds the events of the forward.
  /// `flags`: a KeepFlag per value.
  void begin(const std::vector<HeldValue>& kept_at_root, const std::vector<char>& flags);

  /// True if the value is put into the engine, which may still leave the value in memory.
  bool is_put(int32_t value) const { return is_put_[value] != 0; }
  bool any_put() const { return !put_.empty(); }
  bool leaves(int32_t value) const { return sent_at_[value] != never; }
  /// The record after which the value is sent, because a result of that record is put.
  int32_t sent_at(int32_t value) const { return sent_at_[value]; }

  /// Notes that backward needs an offloaded value until the end of node `value.until`.
  void need(const HeldValue& value);
  int64_t needed_bytes() const { return needed_bytes_; }
  void compute(double us);
  /// Notes that a replay gets, or drops, a value that was put into the engine.
  void get(int32_t value) { steps_.push_back({CopyStep::Kind::kAsk, value, 0}); }
  void drop(int32_t value) { steps_.push_back({CopyStep::Kind::kDrop, value, 0}); }
  /// Notes that a slot holds the value until the end of node `value.until`.
  void drop_with(const HeldValue& value) { dropped_by_[value.until].push_back(value.value); }
  void end_node(size_t node);

  /// The most bytes that can be on their way out once `sent_bytes` have been sent.
  int64_t leaving_bytes(int64_t sent_bytes) const;
  /// The most bytes that can be on their way out and in. `sent_bytes`: bytes of all values sent in
  /// the step. Values that backward has asked for while they were leaving still count, because
  /// copies out may still read them.
  int64_t moving_bytes(int64_t sent_bytes) const;

  /// Time that compute has waited for copies in the step.
  double waited_us() const;

 private:
  static constexpr int32_t never = -1;

  void choose_sent();
  void pass_forward();

  const StepGraph& graph_;
  const StepUnits& units_;
  const OffloadTerms& terms_;
  std::vector<int32_t> put_;                      // values put into the engine, ascending by maker
  std::vector<char> is_put_;                      // per value
  std::vector<int32_t> sent_at_;                  // per value
  std::vector<CopyStep> steps_;                   // events of the step so far
  int64_t needed_bytes_ = 0;                      // offloaded bytes that backward still needs
  std::vector<int64_t> needed_until_;             // per node: needed bytes until the node's end
  std::vector<std::vector<int32_t>> dropped_by_;  // per node: values that slots hold until its end
};

}  // namespace remat::detail
