// SPDX-License-Identifier: BSD-3-Clause

// The thread-local stack of saved-tensor scopes.
#include <remat/tape/scope.h>

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
[[gnu::tls_model("initial-exec")]] thread_local Scope* current_scope = nullptr;
thread_local size_t hidden_depth = 0;  // of HiddenScopes

/// Memory of the arguments of the op that runs, if a scope is not shown it.
thread_local FirstPosition<const void*> memory_given;

bool all_scopes_see_ops() {
  const Scope* scope = current_scope;
  while (scope && scope->next_to_see_ops() == scope->previous()) scope = scope->previous();
  return !scope;
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
  current_scope = nullptr;
  switch_interception(false);
});

}  // namespace

std::atomic<TraceSink*> trace_sink{nullptr};

Scope::Scope(Phase phase, Ops ops)
    : previous_(current_scope),
      next_to_see_ops_(current_scope),
      policy_(current_scope ? current_scope->policy_ : nullptr),
      python_hooks_depth_(at::SavedTensorDefaultHooks::get_tls_state().stack.size()),
      dispatch_modes_(modes_here()),
      in_replay_(phase == Phase::kReplay || (previous_ && previous_->in_replay_)),
      ops_seen_around_(interception_is_on()) {
  if (ops == Ops::kSeen) switch_interception(true);
  current_scope = this;
}

Scope::~Scope() {
  // A forked child that leaves its parent's scopes has nothing to go back to.
  if (!current_scope) return;
  current_scope = previous_;
  switch_interception(ops_seen_around_);
}

int64_t Scope::modes_here() {
  return c10::impl::TorchDispatchModeTLS::stack_len();
}

bool Scope::has_python_hooks_inside() const {
  return at::SavedTensorDefaultHooks::get_tls_state().stack.size() > python_hooks_depth_;
}

Scope* Scope::region_scope() {
  Scope* scope = this;
  while (scope && scope->opened_hooks()) scope = scope->previous_;
  return scope;
}

void Scope::before_backward(const EdgeList& roots) {
  if (previous_) previous_->before_backward(roots);
}

std::any Scope::capture_context() {
  return previous_ ? previous_->capture_context() : std::any();
}

void Scope::before_hooks(size_t count) {
  if (previous_) previous_->before_hooks(count);
}

void Scope::before_accumulate(const EdgeList& roots) {
  if (previous_) previous_->before_accumulate(roots);
}

void Scope::after_backward(c10::ArrayRef<at::Tensor> gradients) {
  if (!is_user_hooks()) gradients = {};
  if (previous_) previous_->after_backward(gradients);
}

void Scope::hide_ops_up_to(uint64_t replay_id) {
  while (next_to_see_ops_ && (replay_id == 0 || next_to_see_ops_->replay_id() != replay_id)) {
    next_to_see_ops_ = next_to_see_ops_->previous_;
  }
}

uint64_t Scope::current_replay() {
  for (const Scope* scope = current_scope; scope; scope = scope->previous_) {
    if (scope->replay_id() != 0) return scope->replay_id();
  }
  return 0;
}

// Note [Who sees an op]: the outermost scope first, since an outer replay puts its own tensors in
// place of those from outside, and everything made inside it is to see these. A replay inside other
// scopes (a backward in a region's function) is no part of what they do: it is shown only to the
// replay that its region was made in, if any, and not for comparison. But what it makes is made in
// all of them.
void Scope::before_op_from(Scope* scope, OpCall& call, bool logged) {
  if (scope->next_to_see_ops_) {
    before_op_from(scope->next_to_see_ops_, call, logged && scope->replay_id() == 0);
  }
  scope->before_op(call, logged);
}

void Scope::all_before_op(OpCall& call, bool logged) {
  if (!current_scope) return;
  before_op_from(current_scope, call, logged);
  if (!all_scopes_see_ops()) note_memory_given(call);
  if (TraceSink* const sink = trace_sink.load(std::memory_order_acquire))
    sink->before_op(current_trace_scope(), call);
}

void Scope::all_after_op(OpCall& call) {
  if (TraceSink* const sink = trace_sink.load(std::memory_order_acquire))
    sink->after_op(current_trace_scope(), call);
  // First: a replay that sees the op puts tensors from outside in the place of their shadows, and
  // those are nothing new to anyone.
  const Scope* seeing = current_scope;
  for (Scope* scope = current_scope; scope; scope = scope->previous_) {
    if (scope == seeing) {
      seeing = scope->next_to_see_ops_;
      continue;
    }
    // Not on memory that was there. Not every op that returns such memory says so (_unsafe_view).
    for_each_result_tensor(call, [&](const at::Tensor& tensor) {
      if (!is_given(tensor)) scope->adopt(tensor);
    });
  }
  for (Scope* scope = current_scope; scope; scope = scope->next_to_see_ops_) {
    scope->after_op(call);
  }
}

void Scope::all_after_data(const at::Tensor& tensor) {
  for (Scope* scope = current_scope; scope; scope = scope->next_to_see_ops_) {
    scope->after_data(tensor);
  }
}

void Scope::all_before_set_data(const at::Tensor& tensor) {
  for (Scope* scope = current_scope; scope; scope = scope->next_to_see_ops_) {
    scope->before_set_data(tensor);
  }
}

void Scope::all_adopt(const at::Tensor& tensor) {
  for (Scope* scope = current_scope; scope; scope = scope->previous_) {
    scope->adopt(tensor);
  }
}

void Scope::all_adopt_part(const at::Tensor& tensor) {
  for (Scope* scope = current_scope; scope; scope = scope->previous_) {
    scope->adopt_part(tensor);
  }
}

void Scope::all_check_handler_write(const OpInfo& info, const std::string& op,
                                    const c10::Storage& storage, int64_t modes) {
  for (Scope* scope = current_scope; scope; scope = scope->next_to_see_ops_) {
    if (!scope->was_before(modes)) scope->check_handler_write(info, op, storage);
  }
}

template <class T>
T Scope::stand_in_from(Scope* scope, const T& of) {
  return scope ? scope->stand_in(stand_in_from(scope->next_to_see_ops_, of)) : of;
}

at::Tensor Scope::as_seen(const at::Tensor& tensor) const {
  return stand_in_from(next_to_see_ops_, tensor);
}

// Not beyond a replay: one inside another begins regions that the forward around did not note.
bool Scope::decide_tape_from(Scope* scope, bool wanted) {
  if (!scope) return wanted;
  const bool is_replay = scope->replay_id() != 0;
  Scope* const around = is_replay ? nullptr : scope->next_to_see_ops_;
  return scope->decide_tape(decide_tape_from(around, wanted));
}

bool Scope::all_decide_tape(bool wanted) {
  return decide_tape_from(current_scope, wanted);
}

at::Tensor Scope::current_stand_in(const at::Tensor& tensor) {
  return stand_in_from(current_scope, tensor);
}

torch::autograd::Edge Scope::current_stand_in(const torch::autograd::Edge& edge) {
  return stand_in_from(current_scope, edge);
}

TraceScope Scope::current_trace_scope() {
  TraceScope innermost;
  size_t regions = 0;
  for (const Scope* scope = current_scope; scope; scope = scope->previous_) {
    const TraceScope next = scope->trace_scope();
    if (!next.region) continue;
    if (!innermost.region) innermost = next;
    ++regions;
  }
  innermost.depth = regions > 0 ? regions - 1 : 0;
  return innermost;
}

Scope* Scope::current() {
  return current_scope;
}

Scope* Scope::innermost_with_calls() {
  Scope* scope = current_scope;
  while (scope && !scope->named_calls()) scope = scope->previous_;
  return scope;
}

SuspendScopes::SuspendScopes() : hidden_(current_scope), ops_were_seen_(interception_is_on()) {
  current_scope = nullptr;
  if (ops_were_seen_) switch_interception(false);
}

SuspendScopes::~SuspendScopes() {
  current_scope = hidden_;
  if (ops_were_seen_) switch_interception(true);
}

bool saves_own() {
  return hidden_depth > 0;
}

HiddenScopes::HiddenScopes() : hidden_(current_scope) {
  ++hidden_depth;
}

HiddenScopes::~HiddenScopes() {
  --hidden_depth;
  current_scope = hidden_;
  if (python_hooks_) at::SavedTensorDefaultHooks::set_tls_state(*python_hooks_);
}

void HiddenScopes::hide(const Scope& scope) {
  current_scope = scope.previous_;
  hide_python_hooks(scope.python_hooks_depth_);
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
OuterScopes::OuterScopes(const Scope& scope) {
  hide(scope);
  while (current_scope && current_scope->is_user_hooks()) hide(*current_scope);
  hide_python_hooks(current_scope ? current_scope->python_hooks_depth() : 0);
}

ScopesAround::ScopesAround(const Scope& scope, Keep keep) {
  hide(scope);
  if (keep == Keep::kInnermostRegion) return;
  for (const Scope* outer = current_scope; outer; outer = outer->previous_) {
    if (!outer->is_user_hooks()) hide(*outer);
  }
}

bool is_recomputing() {
  for (Scope* scope = current_scope; scope; scope = scope->previous()) {
    scope->phase_was_asked();
  }
  return current_scope && current_scope->in_replay();
}

}  // namespace remat
