// SPDX-License-Identifier: BSD-3-Clause

// A link of a set speed, for tests and for planning.
#pragma once

#include <cstdint>
#include <memory>

#include <remat/offload/copy_link.h>
#include <remat/tape/export.h>

namespace remat {

/// Each way of its own. A copy of n bytes takes latency_us + n / gbps.
struct SimLinkOptions {
  double gbps = 0;  ///< 1e9 bytes a second; 0: as fast as memory is
  double latency_us = 0;
};

/// Copies between CPU memory by two threads, each copy as long as it would take on such a link. A
/// store with it throws NotImplementedError for a tensor on another device, in put().
REMAT_API std::shared_ptr<CopyLink> sim_link(const SimLinkOptions& options);

/// The time of a VirtualLink. It passes when somebody says so, or waits. On any thread.
class REMAT_API VirtualClock {
 public:
  virtual ~VirtualClock() = default;
  virtual double now_us() const = 0;
  /// Computes for that long.
  virtual void pass_us(double time) = 0;
};

/// As sim_link(), in virtual time: nothing sleeps, the bytes move when the copy is over, and every
/// run is the same.
struct VirtualLink {
  std::shared_ptr<VirtualClock> clock;
  std::shared_ptr<CopyLink> link;
};
REMAT_API VirtualLink virtual_link(const SimLinkOptions& options);

}  // namespace remat
