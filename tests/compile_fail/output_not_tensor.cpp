// SPDX-License-Identifier: BSD-3-Clause

// A result with an int in it cannot be replayed into.
#include <remat/backend/checkpoint.h>

#include <tuple>

auto misuse(const at::Tensor& x) {
  return remat::checkpoint()([](const at::Tensor& t) { return std::tuple(t.sin(), 1); })(x);
}
