// SPDX-License-Identifier: BSD-3-Clause

// The process-wide registry of regions.
#pragma once

#include <cstdint>

#include <remat/tape/region.h>

namespace remat {

/// For Region itself; others use find_region() and live_regions(). Usable from any thread.
struct RegionRegistry {
  /// Id for the next region.
  static uint64_t next_id();
  /// Adds a region, which others can find from now on. A shared pointer must own it already.
  static void add(Region& region);
  static void remove(uint64_t id) noexcept;
  /// Notes that this thread has closed the region: see take_closed_here().
  static void note_closed(uint64_t id);
};

}  // namespace remat
