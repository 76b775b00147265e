// SPDX-License-Identifier: BSD-3-Clause

// Adds up virtual time.
#include "virtual_clock.h"

#include <algorithm>

namespace cuda_stand_in {

void VirtualClock::spend(Stream& stream, Engine engine, double ns) {
  double& engine_free_at_ns = free_at_ns_[stream.device][static_cast<int>(engine)];
  const double begin_ns = std::max({stream.free_at_ns, engine_free_at_ns, host_ns_});
  stream.free_at_ns = begin_ns + ns;
  engine_free_at_ns = stream.free_at_ns;
}

void VirtualClock::host_waits_until(double at_ns) {
  host_ns_ = std::max(host_ns_, at_ns);
}

}  // namespace cuda_stand_in
