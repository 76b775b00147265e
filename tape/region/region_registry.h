// SPDX-License-Identifier: BSD-3-Clause

// The regions that there are.
#pragma once

#include <cstdint>

#include <remat/tape/region.h>

namespace remat {

/// For Region itself; others ask find_region() and its neighbours. From any thread.
struct RegionRegistry {
  /// Its id.
  static uint64_t add(Region& region);
  static void remove(uint64_t id) noexcept;
  /// This thread has closed the region: see take_closed_here().
  static void note_closed(uint64_t id);
};

}  // namespace remat
