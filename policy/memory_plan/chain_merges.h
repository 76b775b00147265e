// SPDX-License-Identifier: BSD-3-Clause

// Runs of different regions that come again and again, to be planned as one region too.
#pragma once

#include <remat/planner/chain.h>

namespace remat::detail {

void add_merges(Chain& chain);

}  // namespace remat::detail
