// SPDX-License-Identifier: BSD-3-Clause

// Event-by-event simulation of a schedule, tensor by tensor, with times and bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <remat/planner/schedule.h>

namespace remat::detail {

/// A tensor or workspace that is held at some moment.
struct Holding {
  enum class Kind : uint8_t { kChainTensor, kTensor, kGradient, kChainGradient, kWorkspace };

  Kind kind = Kind::kTensor;
  /// Position of the first region that runs as one with the holder; for kChainTensor and
  /// kChainGradient i of x_i, the input of region i.
  size_t position = 0;
  int type = 0;
  int index = 0;  ///< Tensor; for kWorkspace the op
  int64_t bytes = 0;
};

struct Simulation {
  Ticks time = 0;
  int64_t peak = 0;           ///< Includes x_0
  size_t peak_step = 0;       ///< Number of op runs, backwards included, until the peak is reached
  std::vector<Holding> held;  ///< Held at the peak, the largest first, if requested
  size_t peak_position = 0;   ///< Position of the (first) region that runs at the peak
  int peak_op = 0;            ///< Op that runs at the peak, by its index in that region
  bool peak_in_backward = false;
};

/// @throws std::logic_error if a tensor that an op reads is missing, which is a defect.
Simulation simulate(const ChainModel& model, const Schedule& schedule, bool list_held = false);

/// Bytes that the schedule needs by the planner's arithmetic, x_0 included. `simulate` must find
/// the same number.
int64_t required_bytes(const ChainModel& model, const Schedule& schedule);

}  // namespace remat::detail
