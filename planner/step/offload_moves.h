// SPDX-License-Identifier: BSD-3-Clause

// Kept values that leave the device: when an offload engine sends them, and how long compute waits.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <remat/policy/offload_terms.h>

#include "copy_timeline.h"
#include "step_needs.h"

namespace remat::detail {

/// Note [Peaks with OFFLOAD]
/// The speed of copies decides how long a step takes, but not its peak: an engine copies out at
/// most max_leaving_bytes at once, and prefetches at most prefetch_bytes. So an offloaded value
/// counts in full until it is sent, then as part of the leaving bytes, then as part of the
/// prefetched bytes until a replay asks for it, and in full again while it is in use. It is sent
/// with the first put after the program has dropped it; a value that no put follows stays.
class OffloadMoves {
 public:
  /// All arguments must outlive this object.
  OffloadMoves(const StepGraph& graph, const StepUnits& units, const OffloadTerms& terms);

  /// True if offloading the value could save memory, if it is kept.
  bool may_move(int32_t value) const;

  /// Begins a step: chooses the values that move, and passes its forward. `flags`: a KeepFlag per
  /// value.
  void begin(const std::vector<HeldValue>& kept_at_root, const std::vector<char>& flags);

  /// True if the engine is given the value; it may stay nevertheless.
  bool is_put(int32_t value) const { return is_put_[value] != 0; }
  bool any_put() const { return !put_.empty(); }
  bool leaves(int32_t value) const { return sent_at_[value] != never; }
  /// The record whose result's put sends the value.
  int32_t sent_at(int32_t value) const { return sent_at_[value]; }

  /// Backward needs a value that leaves, until the end of that node.
  void need(const HeldValue& value);
  int64_t needed_bytes() const { return needed_bytes_; }
  /// Compute takes `us`.
  void compute(double us);
  /// A replay gets, or drops, a value that the engine was given.
  void get(int32_t value) { steps_.push_back({CopyStep::Kind::kAsk, value, 0}); }
  void drop(int32_t value) { steps_.push_back({CopyStep::Kind::kDrop, value, 0}); }
  /// A slot drops the value at the end of a node.
  void drop_with(const HeldValue& value) { dropped_by_[value.until].push_back(value.value); }
  void end_node(size_t node);

  /// Most bytes on their way out when `sent_bytes` have been sent.
  int64_t leaving_bytes(int64_t sent_bytes) const;
  /// Most bytes on their way out and in. `sent_bytes`: all that leaves in the step. A copy still
  /// reads memory of values that were needed before they had left.
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
  std::vector<int32_t> put_;                      // values given to the engine, ascending by maker
  std::vector<char> is_put_;                      // per value
  std::vector<int32_t> sent_at_;                  // per value
  std::vector<CopyStep> steps_;                   // of the step so far
  int64_t needed_bytes_ = 0;                      // bytes that leave and that backward still needs
  std::vector<int64_t> needed_until_;             // per node: part of these that its end frees
  std::vector<std::vector<int32_t>> dropped_by_;  // per node: values that slots hold until its end
};

}  // namespace remat::detail
