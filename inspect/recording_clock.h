// SPDX-License-Identifier: BSD-3-Clause

// The clock of a recording.
#pragma once

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include <cstdint>

#include <remat/inspect/thread_clock.h>
#include <remat/recording/events.h>

namespace remat {

/// Never goes back, and the same for all threads. Where the processor counts at a constant rate,
/// that count, which is read in a third of the time; it is compared with the system's clock for two
/// milliseconds, once.
class RecordingClock {
 public:
  RecordingClock()
      : ns_per_tick_(measured_ns_per_tick()), zero_(ns_per_tick_ > 0 ? ticks() : wall_ns()) {}

  /// Since it was made.
  TimeNs now() const {
    if (ns_per_tick_ > 0)
      return static_cast<TimeNs>(static_cast<double>(ticks() - zero_) * ns_per_tick_);
    return wall_ns() - zero_;
  }

 private:
  static int64_t ticks() {
#if defined(__x86_64__)
    return static_cast<int64_t>(__rdtsc());
#else
    return 0;
#endif
  }
  /// 0: it does not count at a constant rate.
  static double measured_ns_per_tick();

  const double ns_per_tick_;
  const int64_t zero_;
};

}  // namespace remat
