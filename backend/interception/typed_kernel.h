// SPDX-License-Identifier: BSD-3-Clause

// Unboxed kernels for ops whose C++ signatures are known.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace remat {

/// Returns the kernel to register for an autograd key in front of `op`.
///
/// Note [Typed kernels]: LibTorch boxes the arguments for a boxed kernel, which allocates memory,
/// and unboxes them for the next kernel. Boxing is wasted where remat passes an op on: a composite
/// op outside of policies, and a view that no scope needs to see. So the ops of this kind that
/// models call most have kernels of their own types, which box only what a scope has to see.
c10::KernelFunction make_intercept_kernel(const c10::OperatorHandle& op);

}  // namespace remat
