// SPDX-License-Identifier: BSD-3-Clause

// Bitwise comparison of tensors: NaN equals itself, -0 differs from 0.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstring>

/// True if both are undefined, or have the same dtype, shape and bits.
inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor left = a.detach().contiguous().cpu();
  const at::Tensor right = b.detach().contiguous().cpu();
  return std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}
