// SPDX-License-Identifier: BSD-3-Clause

// Memory on the heap, as malloc counts it.
#pragma once

#include <malloc.h>

#include <cstdint>

/// Returns the bytes that the process has taken from malloc, which no allocator of c10 reports.
inline int64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<int64_t>(info.uordblks + info.hblkhd);
}
