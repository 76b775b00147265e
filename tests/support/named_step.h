// SPDX-License-Identifier: BSD-3-Clause

// Runs one step of a function of named calls, in a region and plainly.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <remat/remat.h>

#include "support/catch.h"
#include "support/same_bits.h"

namespace remat {

using TensorFn = std::function<at::Tensor(const at::Tensor&)>;
using Tensors = std::vector<at::Tensor>;

template <class F>
auto save(std::string name, F fn) {
  return native_op(std::move(fn), std::move(name), Policy::kSave);
}

template <class F>
auto recompute(std::string name, F fn) {
  return native_op(std::move(fn), std::move(name), Policy::kRecompute);
}

inline at::Tensor sin_of(const at::Tensor& t) {
  return t.sin();
}

inline at::Tensor exp_of(const at::Tensor& t) {
  return t.exp();
}

/// Returns a new leaf with the same values in each call.
inline at::Tensor step_input() {
  return (torch::arange(32, at::kFloat) / 16 - 1).view({4, 8}).requires_grad_();
}

/// Returns the result of `fn`, then the gradients of its input and of `weights`.
inline Tensors step(const TensorFn& fn, const Tensors& weights = {}) {
  for (at::Tensor weight : weights) weight.mutable_grad() = at::Tensor();
  const at::Tensor x = step_input();
  const at::Tensor y = fn(x);
  (y * y.detach()).sum().backward();
  Tensors all{y.detach(), x.grad()};
  for (const at::Tensor& weight : weights) all.push_back(weight.grad());
  return all;
}

inline void check_same(const Tensors& got, const Tensors& expected) {
  REQUIRE(got.size() == expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    INFO("tensor " << i);
    CHECK(same_bits(got[i], expected[i]));
  }
}

/// Checks that a step in a region is bitwise equal to a plain step.
inline void check_as_plain(const TensorFn& fn, const Tensors& weights = {},
                           const CheckpointOptions& options = {.name = "r"}) {
  const Tensors got = step(checkpoint(options)(fn), weights);
  check_same(got, step(fn, weights));
}

}  // namespace remat
