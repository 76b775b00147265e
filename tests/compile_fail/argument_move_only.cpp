// SPDX-License-Identifier: BSD-3-Clause

// A replay passes the arguments again, so they must be copyable.
#include <remat/backend/checkpoint.h>

#include <memory>

at::Tensor misuse(const at::Tensor& x) {
  return remat::checkpoint()([](const at::Tensor& t, const std::unique_ptr<int>&) {
    return t.sin();
  })(x, std::make_unique<int>(1));
}
