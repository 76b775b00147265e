// SPDX-License-Identifier: BSD-3-Clause

// The one backend fallback on PrivateUse1: placeholders to their handler, all else to one that
// others set.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <remat/placeholder/visibility.h>

namespace remat {

/// Takes ops that reach PrivateUse1 without a placeholder among their arguments: ordinary tensors
/// on a thread whose included keys have the PrivateUse1 bit, or tensors of somebody else's device.
/// Boxed: replaces arguments on the stack by results.
using PlainOpHandler = void (*)(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                torch::jit::Stack* stack);

/// Registers the fallback, once for the process, for good; later calls do nothing. Any thread.
/// Throws NotImplementedError, naming the other one, if PrivateUse1 has a fallback already.
///
/// Note [Composite kernels at PrivateUse1]: an op with a CompositeExplicitAutograd kernel would run
/// that kernel and never the fallback, and some read memory (`copy_`) or report the name of an
/// inner op. So for ops of LibTorch that have one, the fallback is registered by name as well.
/// Those that choose a device (`empty_like`, `_to_copy`) and those that autograd sees through
/// (CompositeImplicitAutograd) keep their composite kernels.
REMAT_API void install_private_use_fallback();

/// Null restores the default, which throws NotImplementedError. Any thread.
REMAT_API void set_plain_op_handler(PlainOpHandler handler);

}  // namespace remat
