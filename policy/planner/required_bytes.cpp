// SPDX-License-Identifier: BSD-3-Clause

// The planner's own arithmetic for the memory of a whole schedule, from each region's four numbers.
#include <algorithm>

#include "simulator.h"

namespace remat::detail {

int64_t required_bytes(const ChainModel& model, const Schedule& schedule) {
  int64_t held = model.input_bytes(0);
  int64_t most = held;
  int64_t gradient = 0;  // gradient that waits for the running part; 0 before the first backward
  for (const ScheduleEvent& event : events_of(schedule, model.length())) {
    if (event.kind == ScheduleEvent::Kind::kRelease) {
      held -= model.input_bytes(event.index);
      continue;
    }
    if (event.kind == ScheduleEvent::Kind::kForwardOnly) {
      most =
          std::max(most, held + gradient + model.forward_only_peak_bytes[model.chain[event.index]]);
      held += model.output_bytes(event.index) - (event.first ? 0 : model.input_bytes(event.index));
      continue;
    }
    const ScheduledRegion& region = schedule.regions[event.index];
    const Block& block = model.types[region.type];
    const Option option = measure_option(block, region.rerun);
    int64_t left = option.kept;
    if (event.kind == ScheduleEvent::Kind::kForward) {
      most = std::max(most, held + gradient + option.forward_peak);
      held += left + block.output_bytes();
    } else {
      held -= left + block.output_bytes();
      most = std::max(most, held + option.backward_peak);
      gradient = block.input_bytes();
    }
  }
  return most;
}

}  // namespace remat::detail
