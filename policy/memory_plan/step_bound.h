// SPDX-License-Identifier: BSD-3-Clause

// A time of reruns that no cuts within a budget beat.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/memory_plan/step_cuts.h>

#include "step_graph.h"

namespace remat::detail {

/// Note [Bound of a step]
/// While a node of backward runs, what the node itself needs is in memory, and of the values that
/// later nodes need each is either in memory too, or its record runs again later, and then what
/// that reads is in memory or made again in turn. For a price per byte the cheapest such choice is
/// a least cut; each price, at each node, bounds the time from below.
class StepBound {
 public:
  StepBound(const StepGraph& graph, const ReplayCosts& costs);

  /// 0 if nothing is known.
  double rerun_us(int64_t budget_bytes) const;

 private:
  /// time >= us - us_per_byte * (budget - taken)
  struct Line {
    double us = 0;
    double us_per_byte = 0;
    int64_t taken_bytes = 0;
  };

  std::vector<Line> lines_;
};

}  // namespace remat::detail
