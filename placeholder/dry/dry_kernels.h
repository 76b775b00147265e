// SPDX-License-Identifier: BSD-3-Clause

// Kernels for ops without a Meta kernel in LibTorch's C++: shapes, strides and dtypes only.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>
#include <string>
#include <unordered_map>

namespace remat {

/// Kernels that run on meta tensors, by names such as "aten::std.correction".
using DryKernelTable = std::unordered_map<std::string, c10::KernelFunction>;

/// Replaces meta arguments on a stack by meta results.
using DryKernel = std::function<void(torch::jit::Stack& stack)>;

/// Returns the kernel for `op`; null if there is none. For an out= op, the kernel runs the
/// functional form of the op and resizes the `out` arguments to the shapes of its results. Usable
/// from any thread.
DryKernel find_dry_kernel(const c10::OperatorHandle& op);

/// Returns add(op, function), which makes the function the op's kernel.
inline auto kernel_adder(DryKernelTable& table) {
  return [&table](const char* op, auto* function) {
    table.emplace(op, c10::KernelFunction::makeFromUnboxedRuntimeFunction(function));
  };
}

void add_pointwise_kernels(DryKernelTable& table);
void add_reduction_kernels(DryKernelTable& table);
void add_layer_kernels(DryKernelTable& table);

}  // namespace remat
