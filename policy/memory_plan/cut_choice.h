// SPDX-License-Identifier: BSD-3-Clause

// Chooses where to cut a step: a chain of regions between which one large value passes.
#pragma once

#include <cstdint>
#include <vector>

#include "value_spans.h"

namespace remat::detail {

/// Of all the bytes that the step makes
struct RegionShares {
  double most = 0.12;   ///< Heavier regions are cut further, if they can be.
  double least = 0.03;  ///< Cuts that come again and again make no lighter ones.
};

struct StepRegions {
  std::vector<int32_t> positions;
  std::vector<int32_t> passing;  ///< Per position: the storage that passes, or -1
  std::vector<char> pinned;      ///< Per storage: always kept
};

StepRegions choose_regions(const StepGraph& graph, const ValueSpans& spans,
                           const RegionShares& shares);

}  // namespace remat::detail
