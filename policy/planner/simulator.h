// SPDX-License-Identifier: BSD-3-Clause

// Replays a schedule event by event, every tensor by name, and measures time and bytes.
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
  size_t position =
      0;  ///< Of the first region of the run; kChainTensor and kChainGradient: i of x_i
  int type = 0;
  int index = 0;  ///< Tensor; kWorkspace: op
  int64_t bytes = 0;
};

struct Simulation {
  Ticks time = 0;
  int64_t peak = 0;           ///< x_0 included
  size_t peak_step = 0;       ///< The first moment of the peak, as a count of moments
  std::vector<Holding> held;  ///< At the peak, if asked for, the largest first
  size_t peak_position = 0;   ///< Of the first region of the run at the peak
  int peak_op = 0;            ///< Of that run, the op that runs
  bool peak_in_backward = false;
};

/// @throws std::logic_error if an op finds what it reads missing: no schedule that events_of
/// accepts leads to it.
/// @throws std::invalid_argument as events_of does.
Simulation simulate(const ChainModel& model, const Schedule& schedule, bool list_held = false);

/// What the schedule needs by the planner's arithmetic, x_0 included; `simulate` must come to the
/// same.
int64_t required_bytes(const ChainModel& model, const Schedule& schedule);

}  // namespace remat::detail
