// SPDX-License-Identifier: BSD-3-Clause

// Formats bytes and percentages; reads and writes whole files.
#include "text.h"

#include <cmath>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <stdexcept>

namespace remat_plan {

std::string percent(double fraction) {
  return std::isfinite(fraction) ? format("%.2f %%", 100 * fraction) : "-";
}

std::string in_words(int64_t bytes) {
  constexpr std::array<const char*, 5> units = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? format("%lld B", static_cast<long long>(bytes))
                   : format("%.2f %s", value, units[unit]);
}

std::string read_text(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) {
    throw std::runtime_error(
        "[remat-plan] " + path +
        ": expected a file that can be read and is not empty. Correct the path.");
  }
  return text.str();
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (!file)
    throw std::runtime_error("[remat-plan] " + path +
                             ": expected a path that can be written. Correct it.");
}

}  // namespace remat_plan
