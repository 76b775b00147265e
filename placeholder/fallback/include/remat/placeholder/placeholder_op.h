// SPDX-License-Identifier: BSD-3-Clause

// Ops on placeholders, below autograd.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <remat/placeholder/visibility.h>

namespace remat {

/// True if one of the arguments of `op` on top of `stack` is a placeholder, itself or in a list.
/// Only tensors with the key PrivateUse1 are looked at closer. Any thread.
REMAT_API bool has_placeholder_argument(const c10::OperatorHandle& op,
                                        const torch::jit::Stack& stack);

/// Runs `op`, which has a placeholder among its arguments, without data: a boxed kernel for
/// PrivateUse1. Arguments on `stack` are replaced by results, which share the storage of the
/// arguments they alias; tensors written in place are the same objects as before.
///
/// Slot placeholders answer what metadata can answer (views, `*_like`); everything else throws
/// c10::Error with op, slot and region. Dry tensors compute by LibTorch's Meta kernels and those of
/// dry_kernels.h; data that must reach the host throws c10::Error, dry and real tensors in one op
/// (0-dim ones that are only read excepted) ValueError, an op without a Meta kernel
/// NotImplementedError. Any thread.
REMAT_API void run_placeholder_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                  torch::jit::Stack* stack);

}  // namespace remat
