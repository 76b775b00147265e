// SPDX-License-Identifier: BSD-3-Clause

// A planner's description of an offload engine: its memories, the speed of their links, and its
// limits.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace remat {

/// A memory to which storages are moved. A copy of n bytes takes latency_us + n / gbps. Each
/// direction runs one copy at a time; both directions run concurrently.
struct OffloadPlace {
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  std::string name = "host memory";
  double out_gbps = 0;  ///< 1e9 bytes per second
  double in_gbps = 0;
  double latency_us = 0;
  int64_t max_bytes = kNoLimit;
  int64_t block_bytes = 1;  ///< Sizes of storages are rounded up to a multiple of this
  bool operator==(const OffloadPlace&) const = default;
};

/// The terms of an offload engine. OffloadOptions explains the limits.
struct OffloadTerms {
  std::vector<OffloadPlace> places;  ///< The first with room is used; empty: plans use no OFFLOAD
  int64_t min_bytes = 0;
  int64_t max_bytes = OffloadPlace::kNoLimit;
  int64_t prefetch_bytes = 0;
  int64_t max_leaving_bytes = 0;
  bool operator==(const OffloadTerms&) const = default;
};

}  // namespace remat
