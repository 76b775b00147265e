// SPDX-License-Identifier: BSD-3-Clause

// Ops on placeholders, below autograd.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <remat/placeholder/visibility.h>

namespace remat {

/// True if an argument of `op` on top of `stack` is a placeholder, or a list that contains one.
/// Fast for tensors without the key PrivateUse1. Usable from any thread.
REMAT_API bool has_placeholder_argument(const c10::OperatorHandle& op,
                                        const torch::jit::Stack& stack);

/// A boxed kernel for PrivateUse1 that runs `op` without data. One of the arguments must be a
/// placeholder. Replaces the arguments on `stack` by the results, which share the storage of the
/// arguments they alias; tensors written in place are the same objects as before.
///
/// Placeholders of results support ops that need metadata only (views, `*_like`); other ops throw
/// c10::Error with op, slot and region. Dry tensors compute by LibTorch's Meta kernels and the
/// kernels of dry_kernels.h. They throw c10::Error if data must reach the host, ValueError for dry
/// and real tensors in one op (except 0-dim ones that are only read), NotImplementedError for an op
/// without a Meta kernel. Usable from any thread.
REMAT_API void run_placeholder_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                  torch::jit::Stack* stack);

}  // namespace remat
