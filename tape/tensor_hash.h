// SPDX-License-Identifier: BSD-3-Clause

// A number that differs where the bytes of two tensors do.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>

namespace remat {

/// Of the elements, in order, wherever they lie; a device's tensor is copied to the host. 0 for
/// what has no elements in memory. Nobody sees the ops.
uint64_t hash_of(const at::Tensor& tensor);

/// Of those on the CPU that have values, in order.
uint64_t hash_of(c10::ArrayRef<at::Tensor> tensors);

/// What a log says of a tensor that LibTorch has made of numbers of the host without an op
/// (torch::tensor): another value in the replay is another number. Devices' are not looked at.
inline c10::IValue host_value(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.is_cpu() ? hash_of(tensor) : 0);
}

}  // namespace remat
