// SPDX-License-Identifier: BSD-3-Clause

// Every plan of a small profile, replayed by a program that shares nothing with the planner.
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
  std::vector<std::pair<int, int>> groups;  ///< (first, next)
};

struct BruteCost {
  double time_us = 0;
  int64_t peak_bytes = 0;
};

/// All plans, of which there are at most `limit`; nothing if there are more.
std::vector<BrutePlan> all_plans(const Profile& profile, size_t limit);

BruteCost replay(const Profile& profile, const BrutePlan& plan);

/// The same plan in this program's terms.
BrutePlan from_plan(const Profile& profile, const Plan& plan);

/// One to four regions of one to four ops, with residual connections, masks, workspaces, dead ops,
/// merged regions.
Profile random_profile(std::mt19937& random);

}  // namespace remat::test
