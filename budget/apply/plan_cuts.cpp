// SPDX-License-Identifier: BSD-3-Clause

#include <remat/budget/plan_cuts.h>

namespace remat {

Cuts cuts_of(const StepCuts& planned) {
  Cuts cuts;
  for (const int32_t position : planned.positions)
    cuts.positions.push_back(static_cast<size_t>(position));
  for (const auto& [first, end] : planned.groups)
    cuts.groups.push_back({static_cast<size_t>(first), static_cast<size_t>(end)});
  cuts.keep.emplace();
  for (const KeptResult& kept : planned.keep)
    cuts.keep->push_back(
        {.record = static_cast<size_t>(kept.record), .result = static_cast<size_t>(kept.result)});
  return cuts;
}

}  // namespace remat
