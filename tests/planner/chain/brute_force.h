// SPDX-License-Identifier: BSD-3-Clause

// Enumerates every plan of a small profile, and replays it with code that shares nothing with the
// planner.
#pragma once

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include <remat/planner/plan.h>
#include <remat/planner/profile.h>

namespace remat::test {

struct BruteRun {
  int first = 0;
  int count = 1;
  int type = 0;  ///< Index into Profile::block_types
  uint32_t rerun = 0;
};

struct BrutePlan {
  std::vector<BruteRun> runs;
  std::vector<std::pair<int, int>> groups;  ///< (first, one past the last)
};

struct BruteCost {
  double time_us = 0;
  int64_t peak_bytes = 0;
};

/// Returns all plans if there are at most `limit`, otherwise none.
std::vector<BrutePlan> all_plans(const Profile& profile, size_t limit);

BruteCost replay(const Profile& profile, const BrutePlan& plan);

/// Converts a plan of the planner.
BrutePlan from_plan(const Profile& profile, const Plan& plan);

/// Makes one to four regions of one to four ops, with residual connections, masks, workspaces, dead
/// ops and merged regions.
Profile random_profile(std::mt19937& random);

}  // namespace remat::test
