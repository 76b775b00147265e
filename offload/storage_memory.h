// SPDX-License-Identifier: BSD-3-Clause

// Storages without a tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace remat::detail {

/// From the allocator of the device, on the calling thread's stream. Throws what that throws.
at::Storage allocate_storage(int64_t bytes, c10::Device device);

/// Memory of the CPU that begins and ends with a page, as devices and files past the page cache
/// want it. No allocator of LibTorch hears of it. Throws std::bad_alloc.
at::Storage allocate_pages(int64_t bytes);

/// What a copy between them moves: the host's may be the larger one.
size_t copied_bytes(const at::Storage& to, const at::Storage& from);

/// All its bytes as a tensor that shares its memory. Made by no op: nobody sees it.
at::Tensor byte_tensor(const at::Storage& storage);

}  // namespace remat::detail
