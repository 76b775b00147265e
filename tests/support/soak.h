// SPDX-License-Identifier: BSD-3-Clause

// How long to soak, and what the process has.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>

namespace remat {

inline constexpr int kSoakParts = 10;

/// REMAT_SOAK_STEPS, 10,000 without it.
inline int64_t soak_steps_per_part() {
  const char* const steps = std::getenv("REMAT_SOAK_STEPS");
  return std::max<int64_t>(steps ? std::atoll(steps) : 10'000, 1000) / kSoakParts;
}

/// Files: "/proc/self/fd"; threads: "/proc/self/task".
inline int64_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

}  // namespace remat
