// SPDX-License-Identifier: BSD-3-Clause

// The graph keeps a copy of the function.
#include <remat/backend/checkpoint.h>

#include <memory>

at::Tensor misuse(const at::Tensor& x) {
  return remat::checkpoint()(
      [p = std::make_unique<int>(1)](const at::Tensor& t) { return t.sin(); })(x);
}
