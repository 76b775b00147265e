// SPDX-License-Identifier: BSD-3-Clause

// The pages of memory and files.
#pragma once

#include <cstdint>

namespace remat::detail {

/// The page size that devices and files with O_DIRECT require.
inline constexpr int64_t kPageBytes = 4096;

constexpr int64_t whole_pages(int64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace remat::detail
