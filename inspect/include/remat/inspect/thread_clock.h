// SPDX-License-Identifier: BSD-3-Clause

// CPU time of a thread, and the clock on the wall.
#pragma once

#include <cstdint>
#include <ctime>

#include <remat/tape/export.h>

namespace remat {

/// Nanoseconds that the calling thread has run so far. A system call of some 600 ns.
inline int64_t thread_ns() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// Nanoseconds of a clock that never goes back, without a system call.
inline int64_t wall_ns() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

/// The same as thread_ns() for code that asks often, in some 30 ns: between two answers of
/// thread_ns() that are a few microseconds apart wall time goes on for it. Never goes back.
REMAT_API int64_t frequent_thread_ns();

}  // namespace remat
