// SPDX-License-Identifier: BSD-3-Clause

// remat-report: recordings in, a page out.
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>

#include <remat/recording/html_report.h>
#include <remat/recording/recording.h>

#include "arguments.h"

namespace remat_report {
namespace {

remat::Recording load(const std::string& path) {
  remat::Recording recording = remat::Recording::load(path);
  if (!recording.damage.empty()) {
    std::cerr << "[remat-report] " << path << ": " << recording.damage
              << ": what follows is left out\n";
  }
  return recording;
}

[[noreturn]] void refuse(const std::string& path) {
  throw std::invalid_argument("[remat-report] " + path +
                              ": expected a path that can be written, got '" +
                              std::strerror(errno) + "'. Name another.");
}

int run(const Arguments& arguments) {
  const auto name_of = [](const std::string& path) {
    return std::filesystem::path(path).filename().string();
  };
  const remat::ReportOptions options = {.name = name_of(arguments.path),
                                        .second_name = name_of(arguments.second_path)};
  const remat::Recording recording = load(arguments.path);
  // Read before the page is opened: a recording that is none leaves an older page as it is.
  const remat::Recording second =
      arguments.second_path.empty() ? remat::Recording() : load(arguments.second_path);
  std::ofstream file(arguments.page_path, std::ios::binary);
  if (!file) refuse(arguments.page_path);
  if (arguments.second_path.empty()) {
    write_report(recording, file, options);
  } else {
    write_report(recording, second, file, options);
  }
  file.close();
  if (!file) refuse(arguments.page_path);
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
