// SPDX-License-Identifier: BSD-3-Clause

// Hashes of tensors by their bytes.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>

#include <remat/engine/export.h>

namespace remat {

/// Hashes the elements in order, whatever the layout; a device tensor is copied to the host. 0 for
/// tensors without elements in memory. The ops are hidden.
REMAT_API uint64_t hash_of(const at::Tensor& tensor);

/// Hashes the tensors that have values on the CPU, in order.
REMAT_API uint64_t hash_of(c10::ArrayRef<at::Tensor> tensors);

/// Hashes `size` bytes of host memory.
uint64_t hash_of_bytes(const void* bytes, size_t size);

}  // namespace remat
