// SPDX-License-Identifier: BSD-3-Clause

// Number of steps of a soak test, and counts of the process's resources.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iterator>

namespace remat {

inline constexpr int kSoakParts = 10;

/// Returns REMAT_SOAK_STEPS (default 10,000, at least 1,000) divided by kSoakParts.
inline int64_t soak_steps_per_part() {
  const char* const steps = std::getenv("REMAT_SOAK_STEPS");
  return std::max<int64_t>(steps ? std::atoll(steps) : 10'000, 1000) / kSoakParts;
}

/// Counts the entries of a folder: "/proc/self/fd" for open files, "/proc/self/task" for threads.
inline int64_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

}  // namespace remat
