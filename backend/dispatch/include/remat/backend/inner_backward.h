// SPDX-License-Identifier: BSD-3-Clause

// A backward inside a region's function, for engines that are not made in C++.
#pragma once

#include <remat/tape/backward_observer.h>
#include <remat/tape/current_streams.h>
#include <remat/tape/export.h>
#include <remat/tape/scope.h>

namespace remat::detail {

/// While alive, a backward that this thread calls runs on this thread, and leaves its current
/// device and streams as they are.
///
/// Note [Inner backwards]: a backward inside a region's function is part of the function. The
/// region's scopes are on the thread that runs the function, and see what the nodes do. A thread
/// that autograd has for a device has no scopes. A replay runs on such a thread, so there the same
/// nodes would be seen, and slots would shift.
///
/// Note [Dry backward]: autograd makes its threads for devices at the first backward of the
/// process. The device of dry tensors may be registered after that, and then has none.
class REMAT_API OnThisThread {
 public:
  OnThisThread();
  OnThisThread(const OnThisThread&) = delete;
  OnThisThread& operator=(const OnThisThread&) = delete;
  ~OnThisThread();

 private:
  const KeptStreams streams_;
  const bool was_enabled_;
};

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
