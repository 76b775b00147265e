// SPDX-License-Identifier: BSD-3-Clause

// The bytes that are live after a backward.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include <remat/inspect/memory_meter.h>

#include "support/default_device.h"

namespace remat {

/// Returns the live bytes of the default device once they are `expected`, else after five seconds.
/// Autograd's thread of a device lets go of its last node's inputs after backward has returned.
inline int64_t live_bytes(const MemoryMeter& meter, int64_t expected) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (meter.current_bytes(default_device()) != expected &&
         std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
  }
  return meter.current_bytes(default_device());
}

}  // namespace remat
