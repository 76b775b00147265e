// SPDX-License-Identifier: BSD-3-Clause

// Ops that are made of others.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace remat {

/// Runs the kernel of `op`, whose arguments are on `stack`, that is made of other ops; these are
/// dispatched one by one. False if it has none, and the stack is as it was.
bool run_composite(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace remat
