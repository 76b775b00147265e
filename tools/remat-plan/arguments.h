// SPDX-License-Identifier: BSD-3-Clause

// The command line of remat-plan.
#pragma once

#include <cstddef>
#include <string>

namespace remat_plan {

/// Exit codes, as --help lists them.
enum ExitCode : int {
  kDone = 0,
  kInternalError = 1,
  kUsage = 2,
  kBadFile = 3,
  kInfeasible = 4,
};

/// One member per option.
struct Arguments {
  std::string profile_path;
  std::string budget;       ///< Empty: all budgets.
  std::string plan_path;    ///< --plan
  std::string replay_path;  ///< --replay, for measured steps
  std::string pareto_path;
  std::string explain;
  bool json = false;
  bool rotor = false;
  size_t max_breakpoints = 0;
};

/// Fills `arguments`, or prints help or an error and returns false with the exit code.
bool parse(int argc, char** argv, Arguments& arguments, int& exit_code);

}  // namespace remat_plan
