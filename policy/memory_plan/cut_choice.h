// SPDX-License-Identifier: BSD-3-Clause

// The choice of cut positions: a chain of regions between which one large value passes.
#pragma once

#include <cstdint>
#include <vector>

#include "value_spans.h"

namespace remat::detail {

/// Shares of all the bytes that the step makes.
struct RegionShares {
  double most = 0.12;   ///< Heavier regions are cut further if possible
  double least = 0.03;  ///< Recurring cuts make no lighter regions
};

struct StepRegions {
  std::vector<int32_t> positions;
  std::vector<int32_t> passing;  ///< Per position: the storage that passes, or -1
  std::vector<char> pinned;      ///< Per storage: true if always kept
};

StepRegions choose_regions(const StepGraph& graph, const ValueSpans& spans,
                           const RegionShares& shares);

}  // namespace remat::detail
