// SPDX-License-Identifier: BSD-3-Clause

// Allocation of storages without a tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace remat::detail {

/// The page size that devices and files with O_DIRECT require.
inline constexpr int64_t kPageBytes = 4096;

constexpr int64_t whole_pages(int64_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

/// Allocates from the device's allocator, on the calling thread's stream. Throws its errors.
at::Storage allocate_storage(int64_t bytes, c10::Device device);

/// CPU memory that begins and ends at a page, as devices and O_DIRECT files require. Bypasses
/// LibTorch's allocators. Throws std::bad_alloc.
at::Storage allocate_pages(int64_t bytes);

/// Bytes that a copy between the two moves; the host's storage may be larger.
size_t copied_bytes(const at::Storage& to, const at::Storage& from);

/// A byte tensor over the whole storage, sharing its memory. Made without an op, so that no
/// interception or mode sees it.
at::Tensor byte_tensor(const at::Storage& storage);

}  // namespace remat::detail
