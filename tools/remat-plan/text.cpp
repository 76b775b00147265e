// SPDX-License-Identifier: BSD-3-Clause

// Formats bytes and percentages.
#include "text.h"

#include <cmath>

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

}  // namespace remat_plan
