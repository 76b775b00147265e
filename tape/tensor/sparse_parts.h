// SPDX-License-Identifier: BSD-3-Clause

// The plain tensors inside a sparse tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace remat {

/// Returns the indices and values; empty for a tensor that is not sparse. The ops are visible to
/// scopes: hide them with Unseen.
inline std::vector<at::Tensor> sparse_parts(const at::Tensor& tensor) {
  switch (tensor.layout()) {
    case c10::kSparse:
      return {tensor._indices(), tensor._values()};
    case c10::kSparseCsr:
    case c10::kSparseBsr:
      return {tensor.crow_indices(), tensor.col_indices(), tensor.values()};
    case c10::kSparseCsc:
    case c10::kSparseBsc:
      return {tensor.ccol_indices(), tensor.row_indices(), tensor.values()};
    default:
      return {};
  }
}

}  // namespace remat
