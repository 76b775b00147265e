// SPDX-License-Identifier: BSD-3-Clause

// The output of remat-plan.
#pragma once

#include <ostream>
#include <string>

#include <remat/planner/planner.h>

#include "arguments.h"

namespace remat_plan {

void print_plan(std::ostream& out, const remat::Planner& planner, const remat::Plan& plan);
void print_frontier(std::ostream& out, const remat::Planner& planner);

std::string frontier_json(const remat::Planner& planner);

/// True for the JSON of a StepProfile; false for that of a chain's Profile, or for damaged text.
bool is_step_profile(const std::string& text);

/// Prints what the arguments ask for, and writes the files that they name.
/// @return an ExitCode
/// @throws std::invalid_argument for damaged files and for arguments that steps do not have.
int plan_step(std::ostream& out, const Arguments& arguments, const std::string& text);

}  // namespace remat_plan
