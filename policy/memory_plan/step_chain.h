// SPDX-License-Identifier: BSD-3-Clause

// A cut step as a chain of regions for the chain planner, and plans of that chain as cuts of the
// step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <remat/planner/plan.h>
#include <remat/planner/profile.h>

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

  bool is_plannable() const;  ///< True if no region has too many ops

  Profile profile;  ///< Op k of a type has a name that ends in ".k"
  std::vector<ChainRegion> regions;
};

/// Cuts, with the values to keep if anything needs them.
struct CutProposal {
  std::vector<int32_t> positions;
  StepGroups groups;
  std::vector<char> keep;  ///< Per value
};

CutProposal to_proposal(const StepGraph& graph, const StepChain& chain, const StepRegions& regions,
                        const Plan& plan);

}  // namespace remat::detail
