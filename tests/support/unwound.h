// SPDX-License-Identifier: BSD-3-Clause

// Checks after an error: no scope is open, the random stream is where it was, and the next step is
// bitwise right.
#pragma once

#include <remat/backend/checkpoint.h>
#include <remat/engine/generator_state.h>
#include <remat/engine/scope.h>

#include "support/catch.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "support/same_bits.h"

/// Returns the gradients of a small step with dropout, with a fixed seed. Leaves the random stream
/// as it was.
inline at::Tensor dropout_step(bool checkpointed) {
  const auto before = remat::GeneratorState::read(at::detail::getDefaultCPUGenerator());
  torch::manual_seed(11);
  const at::Tensor x = torch::rand({4, 4}).requires_grad_();
  const auto fn = [](const at::Tensor& t) { return torch::dropout(t.sin(), 0.5, true).exp(); };
  const at::Tensor y = checkpointed ? remat::checkpoint()(fn)(x) : fn(x);
  y.sum().backward();
  before.restore();
  return x.grad();
}

/// Calls `fn`, which must throw c10::Error and draw no random numbers, makes the checks of this
/// file, and returns the error's text.
template <class Fn>
std::string error_text(Fn&& fn) {
  const auto stream = remat::GeneratorState::read(at::detail::getDefaultCPUGenerator());
  std::string text;
  try {
    std::forward<Fn>(fn)();
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  }
  CHECK_FALSE(text.empty());
  CHECK_FALSE(remat::is_recomputing());
  CHECK(remat::Scope::current() == nullptr);
  CHECK(stream.is_current());
  CHECK(at::GradMode::is_enabled());
  CHECK(same_bits(dropout_step(true), dropout_step(false)));
  return text;
}
