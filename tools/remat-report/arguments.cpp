// SPDX-License-Identifier: BSD-3-Clause

// Reads the command line with CLI11.
#include "arguments.h"

#include <CLI/CLI.hpp>
#include <iostream>

namespace remat_report {
namespace {

const char* const kFooter = R"(Examples:
  remat-report step.rec -o step.html               memory over time, the peak explained, regions and replays
  remat-report before.rec after.rec -o both.html   two recordings, one over the other

The page is one file that loads nothing: open it in a browser, send it, keep it.
Recordings are written by remat.record("step.rec") in Python, remat::Recorder in C++, or REMAT_RECORD=FOLDER.

Exit codes: 0 done; 1 a fault in remat-report itself; 2 wrong arguments; 3 a file that cannot be read, written or
understood. A recording that is cut off is read up to there, with a warning.)";

}  // namespace

bool parse(int argc, char** argv, Arguments& arguments, int& exit_code) {
  CLI::App app("Writes a page that shows what a recording says.", "remat-report");
  app.footer(kFooter);
  app.add_option("recording", arguments.path, "What a recorder has written")->required();
  app.add_option("second", arguments.second_path, "Another, to see beside it");
  app.add_option("-o,--output", arguments.page_path, "The page, HTML")->required();
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::Success& help) {
    exit_code = app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::cerr << "[remat-report] " << error.what() << ". See remat-report --help.\n";
    exit_code = kUsage;
  }
  return false;
}

}  // namespace remat_report
