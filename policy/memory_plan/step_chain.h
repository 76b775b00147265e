// SPDX-License-Identifier: BSD-3-Clause

// A cut step as a chain of regions, and schedules of that chain as cuts of the step.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <remat/planner/chain.h>
#include <remat/planner/schedule.h>
#include <remat/planner/split_chain.h>

#include "cut_choice.h"
#include "step_units.h"

namespace remat::detail {

struct ChainRegion {
  int32_t begin = 0;  ///< First record
  int32_t end = 0;
  /// Records of each op; records that write one storage are one op.
  std::vector<std::vector<int32_t>> ops;
};

struct StepChain {
  StepChain(const StepGraph& graph, const ValueSpans& spans, const StepRegions& regions);

  /// Are the numbers and the regions' sizes within what the chain planner takes?
  bool is_plannable() const;

  Chain chain;
  std::vector<ChainRegion> regions;
};

/// The places of a schedule's cuts, and per value whether it is kept if anything needs it.
/// @param split the parts of the chain that the schedule is of
std::pair<CutPlaces, std::vector<char>> to_cuts(const StepGraph& graph, const StepChain& chain,
                                                const StepRegions& regions, const SplitChain& split,
                                                const Schedule& schedule);

}  // namespace remat::detail
