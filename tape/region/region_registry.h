// SPDX-License-Identifier: BSD-3-Clause

// The regions that there are.
#pragma once

#include <cstdint>

#include <remat/tape/region.h>

namespace remat {

/// For Region itself; others ask find_region() and its neighbours. From any thread.
struct RegionRegistry {
  /// Of a region that is about to be made.
  static uint64_t next_id();
  /// Others find it from now on, so it is whole: a shared pointer has it.
  static void add(Region& region);
  static void remove(uint64_t id) noexcept;
  /// This thread has closed the region: see take_closed_here().
  static void note_closed(uint64_t id);
};

}  // namespace remat
