// SPDX-License-Identifier: BSD-3-Clause

// The hull's policies and their neighbours, which may have lower peaks: the hull ignores peaks.
#include "hull_options.h"

#include <unordered_set>

#include <remat/planner/options.h>
#include "keep_hull.h"

namespace remat::detail {

std::vector<OpSet> hull_rerun_sets(const Block& block) {
  std::vector<OpSet> sets;
  std::unordered_set<OpSet> seen;
  const auto add = [&](const OpSet& recompute) {
    const OpSet rerun = without_dead_ops(block, recompute);
    if (seen.insert(rerun).second) sets.push_back(rerun);
  };
  add(OpSet());
  add(all_ops(block));
  for (const KeepPoint& point : keep_hull(block, {})) add(point.rerun);
  const size_t centres = sets.size();
  for (size_t i = 0; i < centres; ++i) {
    for (size_t u = 0; u < block.ops.size(); ++u) add(OpSet(sets[i]).flip(u));
  }
  return sets;
}

}  // namespace remat::detail
