// SPDX-License-Identifier: BSD-3-Clause

// Kernels for ops without a Meta kernel in LibTorch's C++: shapes, strides and dtypes only.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>

namespace remat {

/// Kernels by "aten::name.overload", on meta tensors.
using DryKernelTable = std::unordered_map<std::string, c10::KernelFunction>;

/// A kernel for one op, or for its functional form, which returns what the op writes to `out`
/// arguments.
class DryKernel {
 public:
  DryKernel(c10::OperatorHandle kernel_op, const c10::KernelFunction& kernel, size_t outs)
      : op_(kernel_op), kernel_(&kernel), outs_(outs) {}

  /// Replaces meta arguments on `stack` by meta results; `out` arguments get the results' shapes.
  void call(torch::jit::Stack& stack) const;

 private:
  c10::OperatorHandle op_;
  const c10::KernelFunction* kernel_;
  size_t outs_;
};

/// Returns the kernel for `op`; nullopt if there is none. Usable from any thread.
std::optional<DryKernel> find_dry_kernel(const c10::OperatorHandle& op);

/// Returns add(op, function), which makes the function the op's kernel.
inline auto kernel_adder(DryKernelTable& table) {
  return [&table](const char* op, auto* function) {
    table.emplace(op, c10::KernelFunction::makeFromUnboxedRuntimeFunction(function));
  };
}

// Each adds one group of kernels.
void add_pointwise_kernels(DryKernelTable& table);
void add_reduction_kernels(DryKernelTable& table);
void add_convolution_kernels(DryKernelTable& table);
void add_layer_kernels(DryKernelTable& table);
void add_norm_kernels(DryKernelTable& table);
void add_index_kernels(DryKernelTable& table);

}  // namespace remat
