// SPDX-License-Identifier: BSD-3-Clause

// Reads the command line with CLI11.
#include "arguments.h"

#include <CLI/CLI.hpp>
#include <iostream>

namespace remat_trace {
namespace {

const char* const kFooter = R"(Examples:
  remat-trace step.rec                          what ran in each phase and region, and the peak of memory
  remat-trace step.rec --ops --phase replay     every op that ran again
  remat-trace step.rec --ops --op mm --most 20  the first 20 ops with mm in their names
  remat-trace step.rec --ops --region block.0 --slot 3        what made and what remade a saved tensor
  remat-trace step.rec --ops --from 12.5 --to "step 2"        what ran from then until that mark
  remat-trace step.rec --chrome step.json       for chrome://tracing and ui.perfetto.dev
  remat-trace step.rec --snapshot step.pickle   for pytorch.org/memory_viz
  remat-trace diff step.rec                     the first op of a replay that differs from its forward, and why
  remat-trace diff plain.rec step.rec           the first op in which two runs of a program differ, and why

Recordings are written by remat.record("step.rec") in Python, remat::Recorder in C++, or REMAT_RECORD=FOLDER.

Exit codes: 0 done; 1 a fault in remat-trace itself; 2 wrong arguments; 3 a file that cannot be read, written or
understood; 4 diff has found a difference. A recording that is cut off is read up to there, with a warning.)";

const char* const kDiffFooter =
    R"(Two recordings are compared by what the program does: ops outside of regions and in their forwards, then those of
backward, in order, whatever their times and addresses. So a run with regions has no difference to one without.

Exit codes: 0 no difference; 4 a difference; others as of remat-trace.)";

void add_diff(CLI::App& app, Arguments& arguments) {
  CLI::App* const diff = app.add_subcommand(
      "diff", "Finds the first op in which two runs differ, or a replay from its forward");
  diff->footer(kDiffFooter);
  diff->add_option("recording", arguments.path, "Whose replays are compared with their forwards")
      ->required();
  diff->add_option("other", arguments.other_path, "If given, the recording of another run");
  diff->preparse_callback([&](size_t) { arguments.other_path.emplace(); });
}

}  // namespace

bool parse(int argc, char** argv, Arguments& arguments, int& exit_code) {
  CLI::App app("Shows what a recording says: ops, regions, memory.", "remat-trace");
  app.footer(kFooter);
  app.add_option("recording", arguments.path, "What a recorder has written");
  app.add_flag("--ops", arguments.lists_ops, "List ops, in the order in which they began");
  app.add_option("--op", arguments.op, "Only ops with this in their names");
  app.add_option("--region", arguments.region, "Only ops in regions with this in their labels");
  app.add_option("--phase", arguments.phase, "Only ops of this phase")
      ->check(CLI::IsMember({"outside", "forward", "replay", "backward"}));
  app.add_option("--slot", arguments.slot, "Only ops in which autograd saved that slot of a region")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--from", arguments.from,
                 "Only ops that ran then or later: milliseconds, or the name of a mark");
  app.add_option("--to", arguments.to, "Only ops that ran then or earlier");
  app.add_option("--most", arguments.most, "No more lines than this")->check(CLI::PositiveNumber);
  app.add_option("--chrome", arguments.chrome_path, "Write a trace for viewers as JSON");
  app.add_option("--snapshot", arguments.snapshot_path,
                 "Write memory for PyTorch's memory viewer as a pickle");
  add_diff(app, arguments);
  try {
    app.parse(argc, argv);
    if (arguments.path.empty()) throw CLI::RequiredError("recording");
    const bool filters = app.count("--op") + app.count("--region") + app.count("--phase") +
                             app.count("--slot") + app.count("--from") + app.count("--to") +
                             app.count("--most") >
                         0;
    if (filters && !arguments.lists_ops)
      throw CLI::ValidationError(
          "--ops", "expected with --op, --region, --phase, --slot, --from, --to and --most");
    const bool writes = !arguments.chrome_path.empty() || !arguments.snapshot_path.empty();
    if (arguments.other_path && (arguments.lists_ops || writes))
      throw CLI::ValidationError("diff", "expected no options of what shows or writes a recording");
    return true;
  } catch (const CLI::Success& help) {
    exit_code = app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::cerr << "[remat-trace] " << error.what() << ". See remat-trace --help.\n";
    exit_code = kUsage;
  }
  return false;
}

}  // namespace remat_trace
