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
  remat-trace step.rec --chrome step.json       for chrome://tracing and ui.perfetto.dev
  remat-trace step.rec --perfetto step.pftrace  for ui.perfetto.dev, a third of the size
  remat-trace step.rec --snapshot step.pickle   for pytorch.org/memory_viz; the same in step.json

Recordings are written by remat.record("step.rec") in Python, remat::Recorder in C++, or REMAT_RECORD=FOLDER.

Exit codes: 0 done; 1 a fault in remat-trace itself; 2 wrong arguments; 3 a file that cannot be read, written or
understood. A recording that is cut off is read up to there, with a warning.)";

}  // namespace

bool parse(int argc, char** argv, Arguments& arguments, int& exit_code) {
  CLI::App app("Shows what a recording says: ops, regions, memory.", "remat-trace");
  app.footer(kFooter);
  app.add_option("recording", arguments.path, "What a recorder has written")->required();
  app.add_flag("--ops", arguments.lists_ops, "List ops, in the order in which they began");
  app.add_option("--op", arguments.op, "Only ops with this in their names");
  app.add_option("--region", arguments.region, "Only ops in regions with this in their labels");
  app.add_option("--phase", arguments.phase, "Only ops of this phase")
      ->check(CLI::IsMember({"outside", "forward", "replay", "backward"}));
  app.add_option("--most", arguments.most, "No more lines than this")->check(CLI::PositiveNumber);
  app.add_option("--chrome", arguments.chrome_path, "Write a trace for viewers as JSON");
  app.add_option("--perfetto", arguments.perfetto_path, "Write a trace in Perfetto's format");
  app.add_option("--snapshot", arguments.snapshot_path,
                 "Write memory for PyTorch's memory viewer as a pickle, and beside it as .json");
  try {
    app.parse(argc, argv);
    const bool filters = !arguments.op.empty() || !arguments.region.empty() ||
                         !arguments.phase.empty() || arguments.most > 0;
    if (filters && !arguments.lists_ops)
      throw CLI::ValidationError("--ops", "expected with --op, --region, --phase and --most");
    if (arguments.snapshot_path.ends_with(".json"))
      throw CLI::ValidationError("--snapshot", "expected the path of a pickle, got one of JSON");
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
