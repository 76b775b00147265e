// SPDX-License-Identifier: BSD-3-Clause

// CPU time of a thread, and a monotonic wall clock.
#pragma once

#include <cstdint>
#include <ctime>

#include <remat/engine/export.h>

namespace remat {

/// CPU time of the calling thread so far, in nanoseconds. Costs a system call of about 600 ns.
inline int64_t thread_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// Monotonic wall time in nanoseconds, without a system call.
inline int64_t wall_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// A thread_ns() for frequent callers, at about 30 ns a call. Reads thread_ns() at most once in 15
/// microseconds, and adds the wall time since that reading. Never goes back.
REMAT_API int64_t frequent_thread_ns();

}  // namespace remat
