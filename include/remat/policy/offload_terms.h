// SPDX-License-Identifier: BSD-3-Clause

// What a planner knows of an offload engine: its memories, how fast their links are, and its
// limits.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace remat {

/// A memory that storages are moved to. A copy of n bytes takes latency_us + n / gbps, one at a
/// time each way, both ways at once.
struct OffloadPlace {
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  std::string name = "host memory";
  double out_gbps = 0;  ///< 1e9 bytes a second
  double in_gbps = 0;
  double latency_us = 0;
  int64_t max_bytes = kNoLimit;
  int64_t block_bytes = 1;  ///< A storage takes a multiple of it.
  bool operator==(const OffloadPlace&) const = default;
};

/// OffloadOptions has the meaning of the limits.
struct OffloadTerms {
  std::vector<OffloadPlace> places;  ///< The first with room takes a storage. Empty: no OFFLOAD.
  int64_t min_bytes = 0;
  int64_t max_bytes = OffloadPlace::kNoLimit;
  int64_t prefetch_bytes = 0;
  int64_t max_leaving_bytes = 0;
  bool operator==(const OffloadTerms&) const = default;
};

}  // namespace remat
