// SPDX-License-Identifier: BSD-3-Clause

// A number that differs where the bytes of two tensors do.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>

#include <remat/tape/export.h>

namespace remat {

/// Of the elements, in order, wherever they lie; a device's tensor is copied to the host. 0 for
/// what has no elements in memory. Nobody sees the ops.
REMAT_API uint64_t hash_of(const at::Tensor& tensor);

/// Of those on the CPU that have values, in order.
uint64_t hash_of(c10::ArrayRef<at::Tensor> tensors);

/// Of `size` bytes of the host's.
uint64_t hash_of_bytes(const void* bytes, size_t size);

}  // namespace remat
