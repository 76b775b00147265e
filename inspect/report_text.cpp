// SPDX-License-Identifier: BSD-3-Clause

// Formats numbers and aligned columns.
#include "report_text.h"

#include <c10/util/StringUtil.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <array>
#include <cstdio>

namespace remat {

std::string bytes_str(size_t bytes) {
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return c10::str(bytes, " B");
  auto value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f %s", value, kUnits.at(unit));
  return text.data();
}

std::string count_str(size_t count, const std::string& what) {
  return c10::str(count, " ", what, count == 1 ? "" : "s");
}

std::string columns(const std::vector<std::vector<std::string>>& rows, size_t indent) {
  std::vector<size_t> widths;
  for (const std::vector<std::string>& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (const auto i : c10::irange(row.size())) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const std::vector<std::string>& row : rows) {
    std::string line(indent, ' ');
    for (const auto i : c10::irange(row.size())) {
      const std::string space(widths[i] - row[i].size(), ' ');
      if (i > 0) line += "  ";
      line += i == 0 ? space + row[i] : row[i] + space;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += "\n" + line;
  }
  return text;
}

}  // namespace remat
