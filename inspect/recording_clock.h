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

/// A monotonic clock that all threads share. It uses the processor's counter where that runs at a
/// constant rate, since reading it takes a third of the time; the counter is compared with the
/// system's clock once, for two milliseconds.
class RecordingClock {
 public:
  RecordingClock()
      : ns_per_tick_(measured_ns_per_tick()), zero_(ns_per_tick_ > 0 ? ticks() : wall_ns()) {}

  /// Nanoseconds since this clock was constructed.
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
  /// 0 if the counter has no constant rate.
  static double measured_ns_per_tick();

  const double ns_per_tick_;
  const int64_t zero_;
};

}  // namespace remat
