// SPDX-License-Identifier: BSD-3-Clause

// The output of remat-plan.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include <remat/planner/planner.h>

namespace remat_plan {

void print_plan(std::ostream& out, const remat::Planner& planner, const remat::Plan& plan);
void print_frontier(std::ostream& out, const remat::Planner& planner);
void print_explanation(std::ostream& out, const std::vector<remat::SlotReport>& reports);

/// The plan as a JSON object, with the reports as "explain" if there are any.
std::string plan_json(const remat::Plan& plan, const std::vector<remat::SlotReport>& reports);
std::string frontier_json(const remat::Planner& planner);

}  // namespace remat_plan
