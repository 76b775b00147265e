// SPDX-License-Identifier: BSD-3-Clause

// A lower bound on the recomputation time of any cuts within a budget.
#pragma once

#include <cstdint>
#include <vector>

#include "step_graph.h"

namespace remat::detail {

/// Note [Bound of a step]
/// While a node of backward runs, memory holds what the node itself needs. Each value that later
/// nodes need is either in memory, too, or recomputed later. If a value is recomputed, the values
/// that its maker reads must be in memory or recomputed, too. For a price per byte the cheapest
/// such choice is a minimum cut; each price, at each node, gives a lower bound on the time:
/// time >= us - us_per_byte * (budget - taken_bytes).
struct BoundLine {
  double us = 0;
  double us_per_byte = 0;
  int64_t taken_bytes = 0;
};

std::vector<BoundLine> bound_of(const StepGraph& graph);

/// The highest bound for the budget, in us; 0 if nothing is known.
double least_rerun_us(const std::vector<BoundLine>& bound, int64_t budget_bytes);

}  // namespace remat::detail
