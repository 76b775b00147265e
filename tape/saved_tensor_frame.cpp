// SPDX-License-Identifier: BSD-3-Clause

// The thread-local stack of saved-tensor scopes.
#include <remat/tape/saved_tensor_frame.h>

#include <ATen/SavedTensorHooks.h>
#include <pthread.h>

namespace remat {
namespace {

thread_local SavedTensorFrame* current_frame = nullptr;

// A forked child goes on in the middle of its parent's regions; what it computes is not part of
// them.
[[maybe_unused]] const int fork_handler =
    pthread_atfork(nullptr, nullptr, [] { current_frame = nullptr; });

}  // namespace

SavedTensorFrame::SavedTensorFrame(Phase phase)
    : previous_(current_frame),
      python_hooks_depth_(at::SavedTensorDefaultHooks::get_tls_state().stack.size()),
      in_replay_(phase == Phase::kReplay || (previous_ && previous_->in_replay_)) {
  current_frame = this;
}

SavedTensorFrame::~SavedTensorFrame() {
  // A forked child that leaves its parent's scopes has nothing to go back to.
  if (current_frame) current_frame = previous_;
}

void SavedTensorFrame::before_accumulate(const EdgeList& roots) {
  if (previous_) previous_->before_accumulate(roots);
}

void SavedTensorFrame::after_backward() {
  if (previous_) previous_->after_backward();
}

SavedTensorFrame* SavedTensorFrame::current() {
  return current_frame;
}

SuspendFrames::SuspendFrames() : hidden_(current_frame) {
  current_frame = nullptr;
}

SuspendFrames::~SuspendFrames() {
  current_frame = hidden_;
}

bool is_recomputing() {
  return current_frame && current_frame->in_replay();
}

}  // namespace remat
