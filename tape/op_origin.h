// SPDX-License-Identifier: BSD-3-Clause

// Whose op it is.
#pragma once

#include <remat/tape/op_call.h>

namespace remat {

/// True for ops that are not LibTorch's own: of them nothing is known but their schema.
inline bool is_of_library(const OpInfo& op) {
  return !op.operator_name().name.starts_with("aten::");
}

}  // namespace remat
