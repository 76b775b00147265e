// SPDX-License-Identifier: BSD-3-Clause

// Counting the gradient hooks that a backward pass runs.
#pragma once

#include <torch/csrc/autograd/function_hook.h>

#include <cstddef>
#include <optional>

#include <remat/engine/backward_observer.h>
#include <remat/engine/export.h>

namespace remat {

/// Number of hooks that one LibTorch object calls on the gradient of one output of a node.
struct HookCount {
  size_t hooks;
  std::optional<size_t> output;  ///< nullopt if the hooks cannot be inspected.
};

/// Sets the process-wide functions that count the hooks of another language. Needed because one
/// LibTorch object calls all hooks in a Python dict. By default each object counts as one hook.
using GradientHookCounter = HookCount (*)(const torch::autograd::FunctionPreHook& hook);
using AccumulatedHookCounter = size_t (*)(const torch::autograd::PostAccumulateGradHook& hook);
REMAT_API void set_hook_counters(GradientHookCounter gradient, AccumulatedHookCounter accumulated);

/// Number of hooks on tensor gradients that a backward pass from `roots` runs on its way to `ends`,
/// or to all leaves if `ends` is empty.
REMAT_API size_t count_hooks(const EdgeList& roots, const EdgeList& ends);

/// Number of hooks that run after the leaf's gradient has been accumulated.
size_t count_accumulated(const torch::autograd::Node& leaf);

}  // namespace remat
