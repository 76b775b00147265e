// SPDX-License-Identifier: BSD-3-Clause

// The function that computes an op's numbers on the host: the op's CPU kernel, or a function
// written here.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace cuda_stand_in {

/// Replaces the arguments on `stack`, which are CPU tensors, by the op's results.
/// `generator` is seeded for this call, and undefined for ops that draw nothing.
using HostComputation = void (*)(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                                 const at::Generator& generator);

/// Returns how `op` is computed on the host, or nullptr if no way is known.
HostComputation host_computation(const c10::OperatorHandle& op);

/// Returns the function for ops whose CPU kernel is absent or takes other arguments than CUDA's,
/// or nullptr for other ops.
HostComputation special_computation(const c10::OperatorName& name);

}  // namespace cuda_stand_in
