// SPDX-License-Identifier: BSD-3-Clause

// Kernels for ops that LibTorch's C++ has no Meta kernel for: shapes, strides and dtypes only.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>

namespace remat {

/// Kernels by "aten::name.overload". They take and return meta tensors.
using DryKernelTable = std::unordered_map<std::string, c10::KernelFunction>;

/// A kernel for one op, or for the op that returns what this one writes into its `out` arguments.
class DryKernel {
 public:
  DryKernel(c10::OperatorHandle kernel_op, const c10::KernelFunction& kernel, size_t outs)
      : op_(kernel_op), kernel_(&kernel), outs_(outs) {}

  /// Replaces meta arguments on `stack` by meta results; `out` arguments get the shape of theirs.
  void call(torch::jit::Stack& stack) const;

 private:
  c10::OperatorHandle op_;
  const c10::KernelFunction* kernel_;
  size_t outs_;
};

/// None if there is none for `op`. Any thread.
std::optional<DryKernel> find_dry_kernel(const c10::OperatorHandle& op);

/// add(op, function): the function is the op's kernel.
inline auto kernel_adder(DryKernelTable& table) {
  return [&table](const char* op, auto* function) {
    table.emplace(op, c10::KernelFunction::makeFromUnboxedRuntimeFunction(function));
  };
}

// One group of kernels each.
void add_pointwise_kernels(DryKernelTable& table);
void add_reduction_kernels(DryKernelTable& table);
void add_convolution_kernels(DryKernelTable& table);
void add_layer_kernels(DryKernelTable& table);
void add_norm_kernels(DryKernelTable& table);
void add_index_kernels(DryKernelTable& table);

}  // namespace remat
