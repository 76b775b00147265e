// SPDX-License-Identifier: BSD-3-Clause

// The user's function and its arguments, apart from the tensors among them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <remat/tape/export.h>

namespace remat {

/// What a region runs again. Owned by the region; run() may be called by several threads at once.
class REMAT_API RegionBody {
 public:
  RegionBody() = default;
  RegionBody(const RegionBody&) = delete;
  RegionBody& operator=(const RegionBody&) = delete;
  virtual ~RegionBody() = default;

  /// Calls the function with its arguments, `inputs` in place of the tensors among them, and drops
  /// what it returns.
  virtual void run(c10::ArrayRef<at::Tensor> inputs) const = 0;
};

}  // namespace remat
