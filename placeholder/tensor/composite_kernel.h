// SPDX-License-Identifier: BSD-3-Clause

// Running composite kernels, which consist of other ops.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace remat {

/// Runs the composite kernel of `op`, whose arguments are on `stack`; the ops inside are dispatched
/// one by one. Returns false, with the stack unchanged, if there is none.
bool run_composite(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace remat
