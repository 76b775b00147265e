// SPDX-License-Identifier: BSD-3-Clause

// Ops on dry tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace remat {

/// Runs `op` on shapes. `dry` is one of its dry arguments.
void run_dry_op(const c10::OperatorHandle& op, const at::Tensor& dry, torch::jit::Stack& stack);

/// Always throws ValueError: `op` got a dry tensor and one that is not.
[[noreturn]] void throw_mixed(const c10::OperatorHandle& op, const at::Tensor& dry,
                              const at::Tensor& other);

}  // namespace remat
