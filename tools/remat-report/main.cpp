// SPDX-License-Identifier: BSD-3-Clause

// remat-report: writes a page from recordings.
#include <exception>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include <remat/recording/html_report.h>

#include "arguments.h"

namespace remat_report {
namespace {

int run(const Arguments& arguments) {
  std::vector<std::string> recordings = {arguments.path};
  if (!arguments.second_path.empty()) recordings.push_back(arguments.second_path);
  for (const std::string& damage : remat::write_report_file(recordings, arguments.page_path))
    std::cerr << "[remat-report] " << damage << "\n";
  return kDone;
}

}  // namespace
}  // namespace remat_report

int main(int argc, char** argv) {
  remat_report::Arguments arguments;
  int exit_code = 0;
  try {
    if (!remat_report::parse(argc, argv, arguments, exit_code)) return exit_code;
    return remat_report::run(arguments);
  } catch (const std::invalid_argument& error) {
    std::cerr << error.what() << "\n";
    return remat_report::kFile;
  } catch (const std::exception& error) {
    std::cerr << "[remat-report] a fault of remat-report: " << error.what() << "\n";
    return remat_report::kFault;
  }
}
