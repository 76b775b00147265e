// SPDX-License-Identifier: BSD-3-Clause

// A plan's decision for one slot, in numbers and a sentence.
#pragma once

#include <string_view>
#include <vector>

#include <remat/planner/planner.h>

#include "planned_chain.h"

namespace remat::detail {

std::vector<SlotReport> slot_reports(const PlannedChain& chain, const Plan& plan,
                                     std::string_view slot);

}  // namespace remat::detail
