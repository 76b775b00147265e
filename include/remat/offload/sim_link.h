// SPDX-License-Identifier: BSD-3-Clause

// A simulated link of a given speed, for tests and for planning.
#pragma once

#include <memory>

#include <remat/engine/export.h>
#include <remat/offload/copy_link.h>

namespace remat {

/// The speed of each direction. A copy of n bytes takes latency_us + n / gbps.
struct SimLinkOptions {
  double gbps = 0;  ///< 1e9 bytes per second; 0: the speed of memory
  double latency_us = 0;
};

/// A link between CPU memories with two threads, on which each copy takes as long as it would on a
/// link of this speed. A store that uses the link throws NotImplementedError from put() for a
/// tensor on another device.
REMAT_API std::shared_ptr<CopyLink> sim_link(const SimLinkOptions& options);

}  // namespace remat
