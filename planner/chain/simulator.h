// SPDX-License-Identifier: BSD-3-Clause

// Event-by-event simulation of a schedule, tensor by tensor, with times and bytes.
#pragma once

#include <cstdint>

#include <remat/planner/schedule.h>

namespace remat::detail {

struct Simulation {
  Ticks time = 0;
  int64_t peak = 0;          ///< Includes the chain's input
  size_t peak_position = 0;  ///< Where the region that runs at the peak begins in the chain
  int peak_op = 0;  ///< Op that runs at the peak, by its index in the (merged) region's type
  bool peak_in_backward = false;
};

/// @throws std::logic_error if a tensor or gradient is missing when it is read, or left over after
/// a backward. Such a schedule is a defect of the planner.
Simulation simulate(const ChainModel& model, const Schedule& schedule);

/// Bytes that the schedule needs by the planner's arithmetic, x_0 included. `simulate` must find
/// the same number.
int64_t required_bytes(const ChainModel& model, const Schedule& schedule);

}  // namespace remat::detail
