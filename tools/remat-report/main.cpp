// SPDX-License-Identifier: BSD-3-Clause

// remat-report: writes a page from recordings.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <remat/recording/html_report.h>

namespace {

enum ExitCode : int { kDone = 0, kFault = 1, kUsage = 2, kFile = 3 };

const char* const kFooter = R"(Examples:
  remat-report step.rec -o step.html               memory over time, the peak explained, regions and replays
  remat-report before.rec after.rec -o both.html   two recordings, one over the other

The page is one file that loads nothing: open it in a browser, send it, keep it.
Recordings are written by remat.record("step.rec") in Python, remat::Recorder in C++, or REMAT_RECORD=FOLDER.

Exit codes: 0 done; 1 a fault in remat-report itself; 2 wrong arguments; 3 a file that cannot be read, written or
understood. A recording that is cut off is read up to there, with a warning.)";

int run(int argc, char** argv) {
  std::string path;
  std::string second_path;
  std::string page_path;
  CLI::App app("Writes a page that shows what a recording says.", "remat-report");
  app.footer(kFooter);
  app.add_option("recording", path, "What a recorder has written")->required();
  app.add_option("second", second_path, "Another, to see beside it");
  app.add_option("-o,--output", page_path, "The page, HTML")->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::cerr << "[remat-report] " << error.what() << ". See remat-report --help.\n";
    return kUsage;
  }
  std::vector<std::string> recordings = {path};
  if (!second_path.empty()) recordings.push_back(second_path);
  for (const std::string& damage : remat::write_report_file(recordings, page_path))
    std::cerr << "[remat-report] " << damage << "\n";
  return kDone;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << "\n";
    return kFile;
  } catch (const std::exception& error) {
    std::cerr << "[remat-report] a fault of remat-report: " << error.what() << "\n";
    return kFault;
  }
}
