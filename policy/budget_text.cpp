// SPDX-License-Identifier: BSD-3-Clause

// Budgets as people write them.
#include <array>
#include <charconv>
#include <cmath>
#include <stdexcept>
#include <string>

#include <remat/policy/planner.h>

namespace remat {

namespace {

struct Unit {
  std::string_view name;
  double bytes;
};

constexpr std::array<Unit, 9> units = {{{"B", 1},
                                        {"kB", 1e3},
                                        {"MB", 1e6},
                                        {"GB", 1e9},
                                        {"TB", 1e12},
                                        {"KiB", 1024.0},
                                        {"MiB", 1048576.0},
                                        {"GiB", 1073741824.0},
                                        {"TiB", 1099511627776.0}}};

[[noreturn]] void refuse(std::string_view text) {
  throw std::invalid_argument(
      "[planner] budget: expected bytes with a unit (2.5GiB, 300MB, 4096B), a percentage of the "
      "no-checkpoint "
      "peak (60%), or a number from 0 (each layer checkpointed) to 1 (nothing runs twice), got \"" +
      std::string(text) + "\". Give one of these.");
}

}  // namespace

int64_t Planner::budget_bytes(std::string_view text) const {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || !std::isfinite(value) || value < 0) refuse(text);
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const double peak = static_cast<double>(frontier().no_checkpoint_peak_bytes());
  double bytes = -1;
  if (unit == "%") {
    bytes = value / 100 * peak;
  } else if (unit.empty()) {
    if (value > 1) refuse(text);
    const double least = static_cast<double>(layer_checkpoint().simulated_peak_bytes);
    bytes = least + value * (peak - least);
  }
  for (const Unit& known : units) {
    if (unit == known.name) bytes = value * known.bytes;
  }
  if (bytes < 0 || bytes > 9e18) refuse(text);
  return static_cast<int64_t>(bytes);
}

}  // namespace remat
