// SPDX-License-Identifier: BSD-3-Clause

// Counting the hooks on gradients that a backward passes.
#pragma once

#include <torch/csrc/autograd/function_hook.h>

#include <cstddef>
#include <optional>

#include <remat/tape/backward_observer.h>
#include <remat/tape/export.h>
#include <remat/tape/scope.h>

namespace remat {

/// Hooks on the gradient of one output of a node.
struct HookCount {
  size_t hooks;
  std::optional<size_t> output;  ///< Not known of hooks that nobody can look into.
};

/// How many hooks one object of LibTorch has that stands for those of another language: Python's
/// are in a dict. Null: it is one.
struct HookCounter {
  HookCount (*gradient)(const torch::autograd::FunctionPreHook& hook) = nullptr;
  size_t (*accumulated)(const torch::autograd::PostAccumulateGradHook& hook) = nullptr;
};

/// Sets what counts them, for the process. For the binding of another language.
REMAT_API void set_hook_counter(HookCounter counter);

/// How many hooks on gradients of tensors a backward from `roots` passes: on its way to `ends`, or
/// to all leaves if there are none.
REMAT_API size_t count_hooks(const EdgeList& roots, const EdgeList& ends);

/// How many run after the gradient of the leaf has been accumulated.
size_t count_accumulated(const torch::autograd::Node& leaf);

}  // namespace remat
