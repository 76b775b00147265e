// SPDX-License-Identifier: BSD-3-Clause

// remat-plan: reads the command line and profiles, and prints plans.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <stdexcept>

#include "output.h"

namespace remat_plan {

namespace {

const char* const footer = R"(Examples:
  remat-plan profile.json                                 what every budget costs
  remat-plan profile.json --budget 2.5GiB --plan out.json the fastest plan within 2.5 GiB
  remat-plan step.json --budget 60% --explain block.attn  what becomes of the ops of a module

Bytes are activations, their gradients and workspaces: take parameters, their gradients and optimizer states
off your GPU's memory first.

Exit codes: 0 done; 1 a fault in remat-plan itself; 2 wrong arguments; 3 a file that cannot be read, written or
understood; 4 no plan fits the budget (the output says what does, and what stands in the way).)";

void add_options(CLI::App& app, Arguments& arguments) {
  // Adds an option whose text must not be empty.
  const auto add = [&](const char* name, std::string& text, const char* description) {
    const auto fault = [](const std::string& given) -> std::string {
      return given.empty() ? "expected text, got none" : "";
    };
    app.add_option(name, text, description)->check(CLI::Validator(fault, ""));
  };
  add("profile", arguments.profile_path,
      "A profile (docs/reference/plan-files.md describes the JSON; - reads standard input)");
  add("--budget", arguments.budget,
      "Bytes with a unit (2.5GiB, 300MB), a percentage of the peak without checkpointing (60%), or "
      "0 (each layer checkpointed) to 1 (nothing runs twice)");
  add("--plan", arguments.plan_path, "Write the plan for the budget as JSON");
  add("--replay", arguments.replay_path,
      "Read this plan of a measured step instead of making one, and check it");
  add("--explain", arguments.explain,
      "What the plan of a measured step does with an op or the ops of a module");
  app.add_flag("--json", arguments.json, "Print one JSON object instead of a table");
}

void check(const Arguments& arguments) {
  if (arguments.profile_path.empty())
    throw CLI::ValidationError("profile", "expected the path of a profile");
  const bool needs_budget = !arguments.plan_path.empty() || !arguments.explain.empty();
  if (arguments.budget.empty() && needs_budget && arguments.replay_path.empty()) {
    throw CLI::ValidationError("--budget", "expected with --plan and --explain");
  }
  if (!arguments.budget.empty() && !arguments.replay_path.empty()) {
    throw CLI::ValidationError("--budget", "expected without --replay, whose plan has its own");
  }
}

/// Fills `arguments`, or prints help or an error and returns false with the exit code.
bool parse(int argc, char** argv, Arguments& arguments, int& exit_code) {
  CLI::App app(
      "Plans what a training step keeps and what it computes again, for any memory budget.",
      "remat-plan");
  app.footer(footer);
  add_options(app, arguments);
  try {
    app.parse(argc, argv);
    check(arguments);
    return true;
  } catch (const CLI::Success& help) {
    exit_code = app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::cerr << "[remat-plan] " << error.what() << ". See remat-plan --help.\n";
    exit_code = kUsage;
  }
  return false;
}

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
  const remat::Planner planner(profile);
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
