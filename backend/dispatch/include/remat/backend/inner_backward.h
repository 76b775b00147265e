// SPDX-License-Identifier: BSD-3-Clause

// Reporting backward passes inside a region's function: by SavedTensorEngine, and by Python's
// engine.
#pragma once

#include <remat/engine/backward_observer.h>
#include <remat/engine/current_streams.h>
#include <remat/engine/export.h>

namespace remat::detail {

/// Makes backwards that this thread starts run on this thread as long as the object lives, and
/// leave the thread's current device and streams as they are.
///
/// Note [Inner backwards]: a backward inside a region's function is part of the function, so the
/// region's scopes must see what the backward's nodes do. Scopes belong to the thread that runs the
/// function. On autograd's device threads the nodes would be unseen in the forward, but seen in a
/// replay that runs on such a thread, so the replay would fill the wrong slots.
///
/// Note [Dry backward]: autograd makes its device threads at the first backward of the process. The
/// device of dry tensors may be registered later, and then has no thread, so the thread that starts
/// a backward of dry tensors runs it.
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

/// Call it before a backward from `roots` to `ends` (all leaves if empty) on this thread.
/// `accumulates`: the backward adds to the .grad of leaves. SavedTensorEngine makes this call for
/// LibTorch's engine, but not for Python's. Does nothing outside regions. Throws if the region
/// refuses the backward.
REMAT_API void before_backward_inside(const EdgeList& roots, const EdgeList& ends,
                                      bool accumulates);

/// Call it when the backward has ended without an exception, and is about to return `gradients`. In
/// a replay this may stop the replay. Throws ReplayMismatch if the gradients differ from the
/// forward's.
REMAT_API void after_backward_inside(c10::ArrayRef<at::Tensor> gradients);

}  // namespace remat::detail
