// SPDX-License-Identifier: BSD-3-Clause

// The command line of remat-plan, and what it prints.
#pragma once

#include <array>
#include <cstdio>
#include <ostream>
#include <string>

#include <remat/planner/planner.h>
#include <remat/policy/budget_text.h>

namespace remat_plan {

using remat::detail::bytes_text;

/// Exit codes, as --help lists them.
enum ExitCode : int {
  kDone = 0,
  kInternalError = 1,
  kUsage = 2,
  kBadFile = 3,
  kInfeasible = 4,
};

struct Arguments {
  std::string profile_path;
  std::string budget;       ///< Empty: all budgets.
  std::string plan_path;    ///< --plan
  std::string replay_path;  ///< --replay, for measured steps
  std::string explain;
  bool json = false;
};

void print_plan(std::ostream& out, const remat::Planner& planner, const remat::Plan& plan);
void print_frontier(std::ostream& out, const remat::Planner& planner);

std::string frontier_json(const remat::Planner& planner);

/// True for the JSON of a StepProfile; false for that of a chain's Profile, or for damaged text.
bool is_step_profile(const std::string& text);

/// Prints what the arguments ask for, and writes the files that they name.
/// @return an ExitCode
/// @throws std::invalid_argument for damaged files and wrong arguments.
/// @throws std::runtime_error for files that cannot be read or written, and a plan of another
/// profile.
int plan_step(std::ostream& out, const Arguments& arguments, const std::string& text);

/// Formats like std::printf; at most 511 characters.
template <typename... Args>
std::string format(const char* pattern, Args... args) {
  std::array<char, 512> text{};
  std::snprintf(text.data(), text.size(), pattern, args...);
  return text.data();
}

/// A text such as "12.50 %"; "-" for infinity and NaN.
std::string percent(double fraction);

/// Reads a file, or standard input if `path` is "-".
/// @throws std::runtime_error if the file cannot be read or is empty.
std::string read_text(const std::string& path);

/// @throws std::runtime_error if the file cannot be written.
void write_text(const std::string& path, const std::string& text);

}  // namespace remat_plan
