// SPDX-License-Identifier: BSD-3-Clause

// A second simulation of cut steps, event by event with counted holders, which shares no code with
// the library's.
#pragma once

#include <cstdint>
#include <set>

#include <remat/planner/step_cuts.h>

namespace remat::test {

struct OracleResult {
  bool possible = true;  ///< false: a replay lacks a value.
  int64_t peak_bytes = 0;
  int64_t forward_peak_bytes = 0;
  int64_t kept_bytes = 0;
  int64_t offloaded_bytes = 0;
  double rerun_us = 0;
  std::vector<int32_t> runs;
  int32_t replays = 0;
};

/// `offload`: values kept with OFFLOAD are moved, by copies that take no time.
OracleResult oracle(const StepProfile& profile, const StepCuts& cuts, bool offload = false);

}  // namespace remat::test
