// SPDX-License-Identifier: BSD-3-Clause

// The thread-local stack of saved-tensor scopes.
#include <remat/tape/saved_tensor_frame.h>

#include <ATen/SavedTensorHooks.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <pthread.h>

#include <remat/tape/first_position.h>
#include <remat/tape/interception_bits.h>
#include <remat/tape/op_call.h>

#include "own_saves.h"

namespace remat {
namespace {

// A few accesses per op: no call to find it.
[[gnu::tls_model("initial-exec")]] thread_local SavedTensorFrame* current_frame = nullptr;
thread_local size_t hidden_depth = 0;  // of HiddenScopes

/// Memory of the arguments of the op that runs, if a scope is not shown it.
thread_local FirstPosition<const void*> memory_given;

bool all_scopes_see_ops() {
  const SavedTensorFrame* frame = current_frame;
  while (frame && frame->next_to_see_ops() == frame->previous()) frame = frame->previous();
  return !frame;
}

void note_memory_given(const OpCall& call) {
  memory_given.clear();
  for_each_argument_tensor(
      call, [](size_t, const at::Tensor& tensor) { memory_given.add(memory_of(tensor)); });
  for (size_t i = 0; i < call.info().argument_count(); ++i) {
    if (call.argument(i).isStorage())
      memory_given.add(call.argument(i).toStorage().unsafeGetStorageImpl());
  }
}

bool is_given(const at::Tensor& tensor) {
  return memory_given.contains(memory_of(tensor));
}

// A forked child goes on in the middle of its parent's regions; what it computes is not part of
// them.
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] {
  current_frame = nullptr;
  switch_interception(false);
});

}  // namespace

std::atomic<TraceSink*> trace_sink{nullptr};

SavedTensorFrame::SavedTensorFrame(Phase phase, Ops ops)
    : previous_(current_frame),
      next_to_see_ops_(current_frame),
      policy_(current_frame ? current_frame->policy_ : nullptr),
      python_hooks_depth_(at::SavedTensorDefaultHooks::get_tls_state().stack.size()),
      dispatch_modes_(modes_here()),
      in_replay_(phase == Phase::kReplay || (previous_ && previous_->in_replay_)),
      ops_seen_around_(interception_is_on()) {
  if (ops == Ops::kSeen) switch_interception(true);
  current_frame = this;
}

SavedTensorFrame::~SavedTensorFrame() {
  // A forked child that leaves its parent's scopes has nothing to go back to.
  if (!current_frame) return;
  current_frame = previous_;
  switch_interception(ops_seen_around_);
}

int64_t SavedTensorFrame::modes_here() {
  return c10::impl::TorchDispatchModeTLS::stack_len();
}

bool SavedTensorFrame::has_python_hooks_inside() const {
  return at::SavedTensorDefaultHooks::get_tls_state().stack.size() > python_hooks_depth_;
}

SavedTensorFrame* SavedTensorFrame::region_scope() {
  SavedTensorFrame* frame = this;
  while (frame && frame->opened_hooks()) frame = frame->previous_;
  return frame;
}

void SavedTensorFrame::before_backward(const EdgeList& roots) {
  if (previous_) previous_->before_backward(roots);
}

std::any SavedTensorFrame::capture_context() {
  return previous_ ? previous_->capture_context() : std::any();
}

void SavedTensorFrame::before_hooks(size_t count) {
  if (previous_) previous_->before_hooks(count);
}

void SavedTensorFrame::before_accumulate(const EdgeList& roots) {
  if (previous_) previous_->before_accumulate(roots);
}

void SavedTensorFrame::after_backward(c10::ArrayRef<at::Tensor> gradients) {
  if (!is_user_hooks()) gradients = {};
  if (previous_) previous_->after_backward(gradients);
}

void SavedTensorFrame::hide_ops_up_to(uint64_t replay_id) {
  while (next_to_see_ops_ && (replay_id == 0 || next_to_see_ops_->replay_id() != replay_id)) {
    next_to_see_ops_ = next_to_see_ops_->previous_;
  }
}

uint64_t SavedTensorFrame::current_replay() {
  for (const SavedTensorFrame* frame = current_frame; frame; frame = frame->previous_) {
    if (frame->replay_id() != 0) return frame->replay_id();
  }
  return 0;
}

// Note [Who sees an op]: the outermost scope first, since an outer replay puts its own tensors in
// place of those from outside, and everything made inside it is to see these. A replay inside other
// scopes (a backward in a region's function) is no part of what they do: it is shown only to the
// replay that its region was made in, if any, and not for comparison. But what it makes is made in
// all of them.
void SavedTensorFrame::before_op_from(SavedTensorFrame* frame, OpCall& call, bool logged) {
  if (frame->next_to_see_ops_) {
    before_op_from(frame->next_to_see_ops_, call, logged && frame->replay_id() == 0);
  }
  frame->before_op(call, logged);
}

void SavedTensorFrame::all_before_op(OpCall& call, bool logged) {
  if (!current_frame) return;
  before_op_from(current_frame, call, logged);
  if (!all_scopes_see_ops()) note_memory_given(call);
  if (TraceSink* const sink = trace_sink.load(std::memory_order_acquire))
    sink->before_op(current_trace_scope(), call);
}

void SavedTensorFrame::all_after_op(OpCall& call) {
  if (TraceSink* const sink = trace_sink.load(std::memory_order_acquire))
    sink->after_op(current_trace_scope(), call);
  // First: a replay that sees the op puts tensors from outside in the place of their shadows, and
  // those are nothing new to anyone.
  const SavedTensorFrame* seeing = current_frame;
  for (SavedTensorFrame* frame = current_frame; frame; frame = frame->previous_) {
    if (frame == seeing) {
      seeing = frame->next_to_see_ops_;
      continue;
    }
    // Not on memory that was there. Not every op that returns such memory says so (_unsafe_view).
    for_each_result_tensor(call, [&](const at::Tensor& tensor) {
      if (!is_given(tensor)) frame->adopt(tensor);
    });
  }
  for (SavedTensorFrame* frame = current_frame; frame; frame = frame->next_to_see_ops_) {
    frame->after_op(call);
  }
}

void SavedTensorFrame::all_after_data(const at::Tensor& tensor) {
  for (SavedTensorFrame* frame = current_frame; frame; frame = frame->next_to_see_ops_) {
    frame->after_data(tensor);
  }
}

void SavedTensorFrame::all_before_set_data(const at::Tensor& tensor) {
  for (SavedTensorFrame* frame = current_frame; frame; frame = frame->next_to_see_ops_) {
    frame->before_set_data(tensor);
  }
}

void SavedTensorFrame::all_adopt(const at::Tensor& tensor) {
  for (SavedTensorFrame* frame = current_frame; frame; frame = frame->previous_) {
    frame->adopt(tensor);
  }
}

void SavedTensorFrame::all_adopt_part(const at::Tensor& tensor) {
  for (SavedTensorFrame* frame = current_frame; frame; frame = frame->previous_) {
    frame->adopt_part(tensor);
  }
}

void SavedTensorFrame::all_check_handler_write(const OpInfo& info, const std::string& op,
                                               const c10::Storage& storage, int64_t modes) {
  for (SavedTensorFrame* frame = current_frame; frame; frame = frame->next_to_see_ops_) {
    if (!frame->was_before(modes)) frame->check_handler_write(info, op, storage);
  }
}

template <class T>
T SavedTensorFrame::stand_in_from(SavedTensorFrame* frame, const T& of) {
  return frame ? frame->stand_in(stand_in_from(frame->next_to_see_ops_, of)) : of;
}

at::Tensor SavedTensorFrame::as_seen(const at::Tensor& tensor) const {
  return stand_in_from(next_to_see_ops_, tensor);
}

// Not beyond a replay: one inside another begins regions that the forward around did not note.
bool SavedTensorFrame::decide_tape_from(SavedTensorFrame* frame, bool wanted) {
  if (!frame) return wanted;
  const bool is_replay = frame->replay_id() != 0;
  SavedTensorFrame* const around = is_replay ? nullptr : frame->next_to_see_ops_;
  return frame->decide_tape(decide_tape_from(around, wanted));
}

bool SavedTensorFrame::all_decide_tape(bool wanted) {
  return decide_tape_from(current_frame, wanted);
}

at::Tensor SavedTensorFrame::current_stand_in(const at::Tensor& tensor) {
  return stand_in_from(current_frame, tensor);
}

torch::autograd::Edge SavedTensorFrame::current_stand_in(const torch::autograd::Edge& edge) {
  return stand_in_from(current_frame, edge);
}

TraceScope SavedTensorFrame::current_trace_scope() {
  TraceScope scope;
  size_t regions = 0;
  for (const SavedTensorFrame* frame = current_frame; frame; frame = frame->previous_) {
    const TraceScope next = frame->trace_scope();
    if (!next.region) continue;
    if (!scope.region) scope = next;
    ++regions;
  }
  scope.depth = regions > 0 ? regions - 1 : 0;
  return scope;
}

SavedTensorFrame* SavedTensorFrame::current() {
  return current_frame;
}

SavedTensorFrame* SavedTensorFrame::innermost_with_calls() {
  SavedTensorFrame* frame = current_frame;
  while (frame && !frame->named_calls()) frame = frame->previous_;
  return frame;
}

SuspendFrames::SuspendFrames() : hidden_(current_frame), ops_were_seen_(interception_is_on()) {
  current_frame = nullptr;
  if (ops_were_seen_) switch_interception(false);
}

SuspendFrames::~SuspendFrames() {
  current_frame = hidden_;
  if (ops_were_seen_) switch_interception(true);
}

bool saves_own() {
  return hidden_depth > 0;
}

HiddenScopes::HiddenScopes() : hidden_(current_frame) {
  ++hidden_depth;
}

HiddenScopes::~HiddenScopes() {
  --hidden_depth;
  current_frame = hidden_;
  if (python_hooks_) at::SavedTensorDefaultHooks::set_tls_state(*python_hooks_);
}

void HiddenScopes::hide(const SavedTensorFrame& frame) {
  current_frame = frame.previous_;
  hide_python_hooks(frame.python_hooks_depth_);
}

/// All but the outermost `count`.
void HiddenScopes::hide_python_hooks(size_t count) {
  const auto& python = at::SavedTensorDefaultHooks::get_tls_state();
  if (python.stack.size() <= count) return;
  if (!python_hooks_) python_hooks_ = python;
  at::impl::SavedTensorDefaultHooksTLS around = python;
  while (around.stack.size() > count) around.stack.pop();
  at::SavedTensorDefaultHooks::set_tls_state(around);
}

// PyTorch's pairs too: torch.utils.checkpoint counts what it is given, and how many tensors a tape
// holds depends on which of them share memory.
OuterFrames::OuterFrames(const SavedTensorFrame& frame) {
  hide(frame);
  while (current_frame && current_frame->is_user_hooks()) hide(*current_frame);
  hide_python_hooks(current_frame ? current_frame->python_hooks_depth() : 0);
}

ScopesAround::ScopesAround(const SavedTensorFrame& frame, Keep keep) {
  hide(frame);
  if (keep == Keep::kInnermostRegion) return;
  for (const SavedTensorFrame* scope = current_frame; scope; scope = scope->previous_) {
    if (!scope->is_user_hooks()) hide(*scope);
  }
}

bool is_recomputing() {
  for (SavedTensorFrame* frame = current_frame; frame; frame = frame->previous()) {
    frame->phase_was_asked();
  }
  return current_frame && current_frame->in_replay();
}

}  // namespace remat
