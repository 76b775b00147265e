// SPDX-License-Identifier: BSD-3-Clause

// A backward inside a region's function, for engines that are not made in C++.
#pragma once

#include <remat/tape/backward_observer.h>
#include <remat/tape/export.h>
#include <remat/tape/scope.h>

namespace remat::detail {

/// The thread is about to run a backward from `roots` to `ends`, to all leaves if there are none,
/// and adds to the .grad of leaves if `accumulates`. LibTorch's engine tells this of itself;
/// Python's does not. Nothing happens outside of regions. Throws what the region refuses.
REMAT_API void before_backward_inside(const EdgeList& roots, const EdgeList& ends,
                                      bool accumulates);

/// The backward that the thread ran has ended without an exception, and is about to return
/// `gradients`. If it ran in a replay, this call may stop that replay. Throws ReplayMismatch if the
/// gradients are others than in the forward.
REMAT_API void after_backward_inside(c10::ArrayRef<at::Tensor> gradients);

}  // namespace remat::detail
