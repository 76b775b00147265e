// SPDX-License-Identifier: BSD-3-Clause

#include <remat/recording/html_report.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <string_view>

#include "report_data.h"

namespace remat {
namespace {

using Json = nlohmann::ordered_json;

// Note [Text in a page]: the data stands in a script element, which ends at the first "</script",
// and in which "<!--" has a meaning. JSON of ASCII alone without "<", ">" and "&" contains neither.
// The page's script turns text of the data into text nodes, never into markup.
std::string harmless(const Json& data) {
  const std::string json = data.dump(-1, ' ', true, Json::error_handler_t::replace);
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<') {
      text += "\\u003c";
    } else if (c == '>') {
      text += "\\u003e";
    } else if (c == '&') {
      text += "\\u0026";
    } else {
      text += c;
    }
  }
  return text;
}

void write_page(const Json& data, std::ostream& out) {
  std::string_view page = detail::kReportPage;
  const auto until = [&](std::string_view place) {
    const size_t at = page.find(place);
    out << page.substr(0, at);
    page.remove_prefix(at + place.size());
  };
  until("{style}");
  out << detail::kReportStyle;
  until("{data}");
  out << harmless(data);
  until("{script}");
  out << detail::kReportScript << page;
}

[[noreturn]] void refuse(const std::string& path) {
  throw std::invalid_argument("[recording] " + path +
                              ": expected a path that can be written, got '" +
                              std::strerror(errno) + "'. Name another.");
}

}  // namespace

void write_report(const Recording& recording, std::ostream& out, const ReportOptions& options) {
  Json run = detail::report_data(recording, options.name, options.most_points, options.most_rows);
  write_page({{"runs", Json::array({std::move(run)})}}, out);
}

void write_report(const Recording& first, const Recording& second, std::ostream& out,
                  const ReportOptions& options) {
  const size_t points = options.most_points / 2;
  const size_t rows = options.most_rows / 2;
  write_page(
      {{"runs", Json::array({detail::report_data(first, options.name, points, rows),
                             detail::report_data(second, options.second_name, points, rows)})}},
      out);
}

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
