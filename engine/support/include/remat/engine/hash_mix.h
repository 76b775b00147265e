// SPDX-License-Identifier: BSD-3-Clause

// One step of a 64-bit hash.
#pragma once

#include <cstdint>

namespace remat {

inline uint64_t hash_mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
  return hash ^ hash >> 29U;
}

}  // namespace remat
