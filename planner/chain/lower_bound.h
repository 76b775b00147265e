// SPDX-License-Identifier: BSD-3-Clause

// A time that no schedule beats, whatever its structure.
#pragma once

#include <cstdint>
#include <vector>

#include <remat/planner/chain.h>
#include <remat/planner/step_function.h>
#include "keep_hull.h"

namespace remat::detail {

/// The memory that any schedule holds while the backward of one op runs, and the tensors that later
/// backwards still need.
struct BackwardMoment {
  size_t position = 0;  ///< Position of the region
  int64_t held_bytes = 0;
  bool holds_input = false;
  /// The region with only the needs of those backwards that wait for the op's backward. Tensors
  /// that are counted in held_bytes have 0 bytes here.
  Block rest;
  std::vector<std::vector<KeepPoint>> hulls = {};  ///< Hulls of `rest`, per Fate of its input
};

/// The moments of a region with the most held bytes, at most `count`, without hulls. Covers only
/// ops for whose backward all earlier regions wait.
std::vector<BackwardMoment> backward_moments(const Block& block, size_t position, size_t count);

/// Note [Lower bound]
/// Take an op of region p whose backward must precede all backwards of the regions before p. While
/// this backward runs, W bytes are held: the tensors it reads, its workspace, and gradients. Each
/// tensor that the waiting backwards need is either among the other `budget - W` bytes, or made by
/// an op that runs forward once more. The least time of such ops, over all choices of kept tensors,
/// is a lower bound. The backward of an op whose first out does not lead to the output waits for
/// nothing, so the tensors it needs do not count. With a price per byte instead of a limit, the
/// problem splits into regions, joined by the fate of the tensors between them. Every price gives a
/// bound; cutting planes find the best one.
class LowerBound {
 public:
  /// The model must outlive this object.
  explicit LowerBound(const ChainModel& model);

  /// Bound on the total time in us, including the ideal time; infinity if no schedule fits.
  double total_time_us(int64_t budget_bytes) const;

 private:
  enum class Fate : uint8_t { kKept, kRerun, kGone, kHeldByOp };  // fates of a chain tensor
  static constexpr size_t fates = 4;

  struct State;
  // By the Fates of a region's input and output; nullptr if that pair is impossible
  using BestPoints = std::vector<const KeepPoint*>;

  void add_moments(size_t position);
  std::vector<BestPoints> best_points(double price) const;  // per type
  Step cheapest(const BackwardMoment& moment, double price) const;
  double bound_at(const BackwardMoment& moment, int64_t room_bytes) const;

  const ChainModel& model_;
  std::vector<BackwardMoment> moments_;
  std::vector<std::vector<std::vector<KeepPoint>>> hulls_;  // per type and pair of fates
};

}  // namespace remat::detail
