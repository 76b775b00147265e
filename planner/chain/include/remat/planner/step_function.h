// SPDX-License-Identifier: BSD-3-Clause

// Least time as a function of memory: a falling step function, stored as its breakpoints.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/block.h>

namespace remat::detail {

/// `time` suffices with `bytes` or more.
struct Step {
  int64_t bytes = 0;
  Ticks time = 0;
};

/// Steps in order of rising bytes and falling times.
using StepFunction = std::vector<Step>;

/// The step that holds at `bytes`; nullptr below the first step.
const Step* step_at(const StepFunction& steps, int64_t bytes);

/// The pointwise minimum of candidates. Reuses its buffers.
class StepMinimum {
 public:
  void clear() { best_.clear(); }

  /// Adds a candidate with one step.
  void lower(Step step);

  /// Adds `rest` shifted by `shift` bytes and `time`, from `least_bytes` on.
  void lower(const StepFunction& rest, int64_t shift, Ticks time, int64_t least_bytes);

  /// Adds the sum of `first` shifted by `shift` bytes, `second`, and `time`, from `least_bytes` on.
  void lower(const StepFunction& first, int64_t shift, const StepFunction& second, Ticks time,
             int64_t least_bytes);

  const StepFunction& best() const { return best_; }

 private:
  /// The number of bytes from which on a candidate whose least time is `least_time` cannot improve
  /// anything.
  int64_t useless_from(Ticks least_time) const;
  /// Takes the candidates, the first of which improves; steps before `unchanged` stay.
  void merge(size_t unchanged);

  StepFunction best_;
  StepFunction candidate_;
  StepFunction merged_;
};

/// At most `limit` of the steps, evenly chosen, including the first and the last. They remain
/// feasible, but not minimal.
StepFunction thin_out(const StepFunction& steps, size_t limit);

}  // namespace remat::detail
