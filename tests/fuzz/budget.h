// SPDX-License-Identifier: BSD-3-Clause

// Running random programs within random budgets.
#pragma once

#include "fuzz/program.h"
#include "fuzz/run.h"

namespace remat::fuzz {

/// What is wrong on purpose, for tests of this check.
enum class Fault {
  kNone,
  kNumbers,  // replays draw other ones
  kPeak,     // the step runs by a plan for more bytes
};

/// Measures the plain step of the program, plans it for a budget and runs it by the plan, or nearly
/// the same step; or trains it with auto_checkpoint. Verdict::note says which.
Verdict check_in_budget(const Program& program, Fault fault = Fault::kNone);

/// Verdict::note of those that ran by a plan.
bool is_planned(const char* note);

}  // namespace remat::fuzz
