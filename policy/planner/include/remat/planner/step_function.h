// SPDX-License-Identifier: BSD-3-Clause

// Least time as a function of memory: a falling step function, held by its breakpoints.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/block.h>

namespace remat::detail {

/// With `bytes` or more, `time` is enough.
struct Step {
  int64_t bytes = 0;
  Ticks time = 0;
};

/// Bytes rise, times fall.
using StepFunction = std::vector<Step>;

/// The step that holds at `bytes`; nullptr: less than any.
const Step* step_at(const StepFunction& steps, int64_t bytes);

/// Takes the pointwise least of candidates. Keeps its buffers from one to the next.
class StepMinimum {
 public:
  void clear() { best_.clear(); }

  /// One step.
  void lower(Step step);

  /// `rest` moved up by `shift` bytes and `time`, from `least_bytes` on.
  void lower(const StepFunction& rest, int64_t shift, Ticks time, int64_t least_bytes);

  /// The sum of `first` moved up by `shift` bytes, `second`, and `time`, from `least_bytes` on.
  void lower(const StepFunction& first, int64_t shift, const StepFunction& second, Ticks time,
             int64_t least_bytes);

  const StepFunction& best() const { return best_; }

 private:
  /// Candidates from this many bytes on cannot improve when their least time is `least_time`.
  int64_t useless_from(Ticks least_time) const;
  /// Takes the candidates, the first of which improves; steps before `unchanged` stay.
  void merge(size_t unchanged);

  StepFunction best_;
  StepFunction candidate_;
  StepFunction merged_;
};

/// At most `limit` of the steps, evenly chosen, the first and the last among them: still feasible,
/// no longer least.
StepFunction thin_out(const StepFunction& steps, size_t limit);

}  // namespace remat::detail
