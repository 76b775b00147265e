// SPDX-License-Identifier: BSD-3-Clause

// Runs random programs within random budgets.
#pragma once

#include "fuzz/program.h"
#include "fuzz/run.h"

namespace remat::fuzz {

/// Deliberate fault, for tests of this check.
enum class Fault {
  kNone,
  kNumbers,  // replays draw other random numbers
  kPeak,     // the step runs by the plan of a larger budget
};

/// Measures the plain step of the program, plans it for a budget and runs that step, or a slightly
/// changed one, by the plan; or trains it with auto_checkpoint. Verdict::note says which.
Verdict check_in_budget(const Program& program, Fault fault = Fault::kNone);

/// True if `note` is the Verdict::note of a program that ran by a plan.
bool is_planned(const char* note);

}  // namespace remat::fuzz
