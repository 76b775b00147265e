// SPDX-License-Identifier: BSD-3-Clause

#include <remat/budget/step_log.h>

#include <algorithm>

namespace remat {

bool StepLog::in_replay(Moment moment) const {
  const auto after =
      std::upper_bound(replays.begin(), replays.end(), moment,
                       [](Moment wanted, const Replay& replay) { return wanted < replay.begin; });
  return after != replays.begin() && moment <= std::prev(after)->end;
}

}  // namespace remat
