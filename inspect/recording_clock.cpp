// SPDX-License-Identifier: BSD-3-Clause

#include "recording_clock.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace remat {
namespace {

bool has_constant_rate() {
#if defined(__x86_64__)
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  constexpr unsigned kPowerManagement = 0x80000007;  // invariant TSC, see Intel's and AMD's manuals
  return __get_cpuid(kPowerManagement, &eax, &ebx, &ecx, &edx) != 0 && (edx & (1U << 8U)) != 0;
#else
  return false;
#endif
}

}  // namespace

double RecordingClock::measured_ns_per_tick() {
  static const double measured = [] {
    if (!has_constant_rate()) return 0.0;
    constexpr int64_t kCompareNs = 2'000'000;
    const int64_t first_ns = wall_ns();
    const int64_t first = ticks();
    while (wall_ns() - first_ns < kCompareNs) {
    }
    const int64_t last_ns = wall_ns();
    return static_cast<double>(last_ns - first_ns) / static_cast<double>(ticks() - first);
  }();
  return measured;
}

}  // namespace remat
