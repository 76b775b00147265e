// SPDX-License-Identifier: BSD-3-Clause

// Virtual time: a sum of costs from the settings. It never depends on the machine, so it repeats
// exactly.
#pragma once

#include "settings.h"
#include "streams.h"

namespace cuda_stand_in {

// Parts of a device that work sequentially, whichever stream asks.
enum class Engine { kCompute, kCopyIn, kCopyOut };

class VirtualClock {
 public:
  // Adds work that begins when its stream, its engine and the host are all ready.
  void spend(Stream& stream, Engine engine, double ns);

  double host_ns() const { return host_ns_; }
  void host_works_for(double ns) { host_ns_ += ns; }
  void host_waits_until(double at_ns);

 private:
  double host_ns_ = 0;
  double free_at_ns_[kMaxDevices][3] = {};
};

}  // namespace cuda_stand_in
