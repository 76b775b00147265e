// SPDX-License-Identifier: BSD-3-Clause

// Plans that move kept tensors to host memory: a heuristic, every candidate replayed with its
// copies.
#pragma once

#include <cstdint>
#include <vector>

#include "sequence_solver.h"
#include "simulator.h"

namespace remat::detail {

/// What a region may move, and how much of that is hidden.
struct OffloadRoom {
  int64_t bytes = 0;
  double ticks_per_byte = 0;
  Ticks forward = 0;   ///< Copies out that take longer cost the rest.
  Ticks backward = 0;  ///< Copies in, with the replay's time added
};

struct OffloadPlan {
  int64_t peak = 0;  ///< Of the replay, x_0 included
  Ticks time = 0;
  Schedule schedule;
};

/// Solves the chain once per window W: an option may move up to W bytes of what it keeps, at the
/// cost of what the copies take beyond the time that hides them. Plans of many budgets are
/// replayed, which counts the copies exactly, and the best are kept.
class OffloadSearch {
 public:
  /// The model must have a link. It may go afterwards.
  OffloadSearch(const ChainModel& model, const SolverOptions& options);

  /// The fastest within the budget; nullptr: there is none.
  const OffloadPlan* best(int64_t budget_bytes) const;
  int64_t least_budget_bytes() const;

 private:
  void try_window(const ChainModel& model, std::vector<OffloadRoom> family, int64_t bytes,
                  const SolverOptions& options);
  void add(OffloadPlan plan);

  std::vector<OffloadPlan> plans_;  // Peaks rise, times fall.
};

/// The options, and what becomes of them when they move some of what they keep.
std::vector<Option> with_offload(const Block& block, const std::vector<Option>& options,
                                 const OffloadRoom& room);

}  // namespace remat::detail
