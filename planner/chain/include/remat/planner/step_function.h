// SPDX-License-Identifier: BSD-3-Clause

// Least time as a function of memory: a falling step function, stored as its breakpoints.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/block.h>

namespace remat::detail {

/// The least time is `time` from `bytes` bytes of memory up to the next step.
struct Step {
  int64_t bytes = 0;
  Ticks time = 0;
};

/// Steps in order of rising bytes and falling times.
using StepFunction = std::vector<Step>;

/// The last step with at most `bytes` bytes; nullptr below the first step.
const Step* step_at(const StepFunction& steps, int64_t bytes);

/// The pointwise minimum of candidates. Reuses its buffers.
class StepMinimum {
 public:
  void clear() { best_.clear(); }

  /// Adds a candidate with one step.
  void lower(Step step);

  /// Adds the candidate rest(bytes - shift) + time, from `least_bytes` on.
  void lower(const StepFunction& rest, int64_t shift, Ticks time, int64_t least_bytes);

  /// Adds the candidate first(bytes - shift) + second(bytes) + time, from `least_bytes` on.
  void lower(const StepFunction& first, int64_t shift, const StepFunction& second, Ticks time,
             int64_t least_bytes);

  const StepFunction& best() const { return best_; }

 private:
  /// Returns the bytes from which on the minimum is at most `least_time`. From there on, a
  /// candidate that is never faster than `least_time` improves nothing.
  int64_t useless_from(Ticks least_time) const;
  /// Merges candidate_ into best_, whose steps before index `unchanged` stay. Does nothing if the
  /// first step of candidate_ improves nothing.
  void merge(size_t unchanged);

  StepFunction best_;
  StepFunction candidate_;
  StepFunction merged_;
};

/// Returns at most `limit` of the steps, evenly chosen, with the first and the last. The times of
/// the steps that are left stay reachable, but between these steps they may not be the least.
StepFunction thin_out(const StepFunction& steps, size_t limit);

}  // namespace remat::detail
