// SPDX-License-Identifier: BSD-3-Clause

// A function to train within a budget, and steps of it that are compared with plain ones.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <utility>

#include <remat/remat.h>

#include "support/catch.h"
#include "support/default_device.h"
#include "support/named_step.h"

namespace remat {

/// Eight layers that share one weight, with `extra` further ops in the middle.
struct Layers {
  at::Tensor weight = torch::ones({32, 32}).div(40).requires_grad_();
  int extra = 0;

  at::Tensor operator()(at::Tensor x) const {
    for (int i = 0; i < 8; ++i) {
      x = x + torch::gelu(x.mm(weight)).tanh();
      for (int j = 0; i == 4 && j < extra; ++j) x = x.sigmoid();
    }
    return x.square().mean();
  }
};

/// Returns a function that reads `layers` when it is called, and counts its calls.
inline auto counted(const Layers& layers, int& calls) {
  return [&](const at::Tensor& x) {
    ++calls;
    return layers(x);
  };
}

inline at::Tensor rows(int64_t count) {
  return torch::linspace(-1, 1, count * 32).view({count, 32});
}

/// Returns peak and gradient of one step.
template <class Fn>
std::pair<int64_t, at::Tensor> step(const Fn& fn, const at::Tensor& weight, const at::Tensor& x) {
  weight.mutable_grad() = at::Tensor();
  MemoryMeter meter;
  fn(x).backward();
  return {meter.peak_bytes(default_device()), weight.grad().clone()};
}

template <class Fn>
void check_step(const Fn& planned, const Layers& layers, const at::Tensor& x) {
  const at::Tensor expected = step(layers, layers.weight, x).second;
  CHECK(same_bits(step(planned, layers.weight, x).second, expected));
}

}  // namespace remat
