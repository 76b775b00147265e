// SPDX-License-Identifier: BSD-3-Clause

// Reads the CPU time of threads seldom enough to be cheap.
#include <remat/inspect/thread_clock.h>

#include <algorithm>

namespace remat {
namespace {

/// Limit on the wall time added to a reading, because the thread may be interrupted meanwhile.
constexpr int64_t kMaxWallNs = 15'000;

}  // namespace

int64_t frequent_thread_ns() {
  static thread_local int64_t exact_ns = 0;            // last result of thread_ns()
  static thread_local int64_t exact_at = -kMaxWallNs;  // wall time of that reading
  static thread_local int64_t newest_ns = 0;
  const int64_t now_ns = wall_ns();
  if (now_ns - exact_at >= kMaxWallNs) {
    exact_ns = thread_ns();
    exact_at = now_ns;
  }
  newest_ns = std::max(newest_ns, exact_ns + now_ns - exact_at);
  return newest_ns;
}

}  // namespace remat
