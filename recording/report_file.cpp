// SPDX-License-Identifier: BSD-3-Clause

// Writes a report page from recording files.
#include <remat/recording/html_report.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>

namespace remat {
namespace {

[[noreturn]] void refuse(const std::string& path) {
  throw std::invalid_argument("[recording] " + path +
                              ": expected a path that can be written, got '" +
                              std::strerror(errno) + "'. Name another.");
}

}  // namespace

std::vector<std::string> write_report_file(const std::vector<std::string>& recordings,
                                           const std::string& page) {
  if (recordings.empty() || recordings.size() > 2) {
    throw std::invalid_argument("[recording] report: expected one recording or two, got " +
                                std::to_string(recordings.size()) + ".");
  }
  std::vector<Recording> read;
  std::vector<std::string> damages;
  ReportOptions options;
  for (const std::string& path : recordings) {
    (read.empty() ? options.name : options.second_name) =
        std::filesystem::path(path).filename().string();
    read.push_back(Recording::load(path));
    if (!read.back().damage.empty())
      damages.push_back(path + ": " + read.back().damage + ": what follows is left out");
  }
  std::ofstream file(page, std::ios::binary);
  if (!file) refuse(page);
  if (read.size() == 1) {
    write_report(read[0], file, options);
  } else {
    write_report(read[0], read[1], file, options);
  }
  file.close();
  if (!file) refuse(page);
  return damages;
}

}  // namespace remat
