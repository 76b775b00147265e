// SPDX-License-Identifier: BSD-3-Clause

// remat-plan: reads profiles and prints plans.
#include <algorithm>
#include <iostream>
#include <stdexcept>

#include "arguments.h"
#include "output.h"
#include "text.h"

namespace remat_plan {

namespace {

int show_plan(const Arguments& arguments, const remat::Planner& planner, const remat::Plan& plan) {
  if (!arguments.plan_path.empty()) write_text(arguments.plan_path, plan.to_json());
  if (arguments.json) {
    std::cout << plan.to_json();
  } else {
    print_plan(std::cout, planner, plan);
  }
  return plan.feasible ? kDone : kInfeasible;
}

int run(const Arguments& arguments) {
  const std::string text = read_text(arguments.profile_path);
  if (is_step_profile(text)) return plan_step(std::cout, arguments, text);
  if (!arguments.replay_path.empty()) {
    throw std::invalid_argument(
        "[remat-plan] --replay: expected the profile of a measured step, got that of a chain of "
        "regions. Leave it out.");
  }
  if (!arguments.explain.empty()) {
    throw std::invalid_argument(
        "[remat-plan] --explain: expected the profile of a measured step, got that of a chain of "
        "regions. The table of its plan lists the ops.");
  }
  const remat::Profile profile = remat::Profile::from_json(text, arguments.profile_path);
  const remat::Planner planner(
      profile, {.plan_class = arguments.rotor ? remat::PlanClass::kRotor : remat::PlanClass::kAll,
                .max_breakpoints = arguments.max_breakpoints});
  if (!arguments.pareto_path.empty())
    write_text(arguments.pareto_path, planner.frontier().to_csv());
  if (!arguments.budget.empty())
    return show_plan(arguments, planner, planner.plan(planner.budget_bytes(arguments.budget)));
  if (arguments.json) {
    std::cout << frontier_json(planner);
  } else {
    print_frontier(std::cout, planner);
  }
  return kDone;
}

/// Replaces control characters by ?, since names in errors come from files.
void print_error(std::string text) {
  std::replace_if(
      text.begin(), text.end(),
      [](char c) { return (static_cast<uint8_t>(c) < 0x20 && c != '\n') || c == 0x7F; }, '?');
  std::cerr << text << '\n';
}

/// True for an error in a file, false for one in the arguments.
bool is_of_file(const std::string& error, const Arguments& arguments) {
  const std::string step = "[memory plan] ";
  return error.starts_with("[profile]") || error.starts_with(step + arguments.profile_path) ||
         (!arguments.replay_path.empty() && error.starts_with(step + arguments.replay_path));
}

int run_reporting(const Arguments& arguments) {
  try {
    return run(arguments);
  } catch (const std::runtime_error& error) {
    print_error(error.what());
    return kBadFile;
  } catch (const std::invalid_argument& error) {
    const std::string text = error.what();
    print_error(text);
    return is_of_file(text, arguments) ? kBadFile : kUsage;
  } catch (const std::exception& error) {
    print_error(error.what());
    return kInternalError;
  }
}

/// Returns the exit code.
int run_program(int argc, char** argv) {
  Arguments arguments;
  int exit_code = kUsage;
  if (parse(argc, argv, arguments, exit_code)) exit_code = run_reporting(arguments);
  std::cout.flush();
  if (std::cout) return exit_code;
  std::cerr << "[remat-plan] standard output: expected a place that takes all that is printed, got "
               "one that does not. Make room, or print elsewhere.\n";
  return kBadFile;
}

}  // namespace

}  // namespace remat_plan

int main(int argc, char** argv) {
  return remat_plan::run_program(argc, argv);
}
