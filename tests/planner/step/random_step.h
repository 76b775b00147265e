// SPDX-License-Identifier: BSD-3-Clause

// Small random steps and cuts.
#pragma once

#include <random>

#include <remat/planner/step_cuts.h>

namespace remat::test {

StepProfile random_step(std::mt19937& random);

/// Returns cuts whose kept values may be insufficient or, if `closed`, are sufficient.
StepCuts random_cuts(const StepProfile& profile, bool closed, std::mt19937& random);

}  // namespace remat::test
