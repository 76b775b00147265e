// SPDX-License-Identifier: BSD-3-Clause

// Reads the command line with CLI11.
#include "arguments.h"

#include <CLI/CLI.hpp>
#include <charconv>
#include <iostream>
#include <system_error>

namespace remat_plan {

namespace {

const char* const footer = R"(Examples:
  remat-plan profile.json                                 what every budget costs
  remat-plan profile.json --budget 2.5GiB --plan out.json the fastest plan within 2.5 GiB
  remat-plan step.json --budget 60% --explain block.attn  what becomes of the ops of a module
  remat-plan profile.json --pareto curve.csv              the curve as numbers

Bytes are activations, their gradients and workspaces: take parameters, their gradients and optimizer states
off your GPU's memory first.

Exit codes: 0 done; 1 a fault in remat-plan itself; 2 wrong arguments; 3 a file that cannot be read, written or
understood; 4 no plan fits the budget (the output says what does, and what stands in the way).)";

/// Says what is wrong with the text of --max-breakpoints. CLI11's own validators let numbers pass
/// that the type cannot hold.
std::string breakpoints_fault(const std::string& text) {
  size_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && rest == end && value <= 1000000000 && value != 1) return "";
  return "expected 0, or a whole number from 2 to 1000000000, got " + text;
}

/// An option whose text must not be empty.
CLI::Option* add_text(CLI::App& app, const std::string& name, std::string& text,
                      const std::string& description) {
  const auto fault = [](const std::string& given) -> std::string {
    return given.empty() ? "expected text, got none" : "";
  };
  return app.add_option(name, text, description)->check(CLI::Validator(fault, ""));
}

void add_common(CLI::App& app, Arguments& arguments) {
  add_text(app, "--budget", arguments.budget,
           "Bytes with a unit (2.5GiB, 300MB), a percentage of the peak without "
           "checkpointing (60%), or 0 (each "
           "layer checkpointed) to 1 (nothing runs twice)");
  add_text(app, "--plan", arguments.plan_path, "Write the plan for the budget as JSON");
  add_text(app, "--replay", arguments.replay_path,
           "Read this plan of a measured step instead of making one, and check it");
  add_text(app, "--pareto", arguments.pareto_path, "Write what every budget costs as .csv");
  add_text(app, "--explain", arguments.explain,
           "What the plan of a measured step does with an op or the ops of a module");
  app.add_flag("--rotor", arguments.rotor,
               "Make Rotor's plans, to compare: a region replays whole or not at all");
  app.add_option("--max-breakpoints", arguments.max_breakpoints,
                 "Per part of the chain, 2 or more: fewer are faster, and plans no longer optimal "
                 "(0: all)")
      ->check(CLI::Validator(breakpoints_fault, ""));
  app.add_flag("--json", arguments.json, "Print one JSON object instead of a table");
}

void check(const Arguments& arguments) {
  const bool needs_budget = !arguments.plan_path.empty() || !arguments.explain.empty();
  if (arguments.budget.empty() && needs_budget && arguments.replay_path.empty()) {
    throw CLI::ValidationError("--budget", "expected with --plan and --explain");
  }
  if (!arguments.budget.empty() && !arguments.replay_path.empty()) {
    throw CLI::ValidationError("--budget", "expected without --replay, whose plan has its own");
  }
  const std::string& path = arguments.pareto_path;
  if (!path.empty() && !path.ends_with(".csv"))
    throw CLI::ValidationError("--pareto", "expected a path that ends in .csv, got " + path);
}

}  // namespace

bool parse(int argc, char** argv, Arguments& arguments, int& exit_code) {
  CLI::App app(
      "Plans what a training step keeps and what it computes again, for any memory budget.",
      "remat-plan");
  app.footer(footer);
  add_text(app, "profile", arguments.profile_path,
           "A profile (docs/reference/plan-files.md describes the JSON; - reads standard input)");
  add_common(app, arguments);
  try {
    app.parse(argc, argv);
    if (arguments.profile_path.empty())
      throw CLI::ValidationError("profile", "expected the path of a profile");
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

}  // namespace remat_plan
