// SPDX-License-Identifier: BSD-3-Clause

// CPU time of a thread.
#pragma once

#include <cstdint>
#include <ctime>

namespace remat {

/// Nanoseconds that the calling thread has run so far.
inline int64_t thread_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

}  // namespace remat
