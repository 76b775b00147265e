// SPDX-License-Identifier: BSD-3-Clause

// Reporting ops to the observers of a thread.
#include <remat/engine/first_position.h>
#include <remat/engine/op_call.h>
#include <remat/engine/op_observer.h>
#include <remat/engine/scope.h>

#include "scope_stack.h"

namespace remat {
namespace {

/// Memory of the running op's arguments. Set only if some scope is not shown the op.
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

// Note [Who sees an op]: the outermost scope sees an op first, since an outer replay replaces
// tensors from outside by shadows, and all inner scopes must see the shadows. A replay inside other
// scopes (a backward in a region's function) is not part of what these scopes do, so its ops are
// shown only to the replay in which its region was made, if any, and that replay does not compare
// them. But tensors that the inner replay makes count as made in all these scopes.
void before_op_from(const Scope* scope, OpCall& call, bool logged) {
  if (scope->next_to_see_ops()) {
    before_op_from(scope->next_to_see_ops(), call, logged && scope->replay_id() == 0);
  }
  if (scope->ops()) scope->ops()->before_op(call, logged);
}

template <class T>
T stand_in_from(const Scope* scope, const T& of) {
  if (!scope) return of;
  T outer = stand_in_from(scope->next_to_see_ops(), of);
  return scope->ops() ? scope->ops()->stand_in(outer) : outer;
}

/// Calls f(observer) for each observer that sees an op run here, the innermost first.
template <class F>
void for_each_seeing(F&& f) {
  for (const Scope* scope = current_scope; scope; scope = scope->next_to_see_ops()) {
    if (scope->ops()) f(*scope->ops());
  }
}

/// Calls f(observer) for all observers of the thread, the innermost first.
template <class F>
void for_each_here(F&& f) {
  for (const Scope* scope = current_scope; scope; scope = scope->previous()) {
    if (scope->ops()) f(*scope->ops());
  }
}

}  // namespace

void OpObserver::all_before_op(OpCall& call, bool logged) {
  if (!current_scope) return;
  before_op_from(current_scope, call, logged);
  if (!all_scopes_see_ops()) note_memory_given(call);
  if (TraceSink* const sink = trace_sink.load(std::memory_order_acquire))
    sink->before_op(Scope::current_trace_scope(), call);
}

void OpObserver::all_after_op(OpCall& call) {
  if (TraceSink* const sink = trace_sink.load(std::memory_order_acquire))
    sink->after_op(Scope::current_trace_scope(), call);
  // Adopt before after_op(): there, a replay that sees the op replaces shadows by the tensors from
  // outside, which must not be adopted because they are not new to any scope.
  const Scope* seeing = current_scope;
  for (const Scope* scope = current_scope; scope; scope = scope->previous()) {
    if (scope == seeing) {
      seeing = scope->next_to_see_ops();
      continue;
    }
    if (!scope->ops()) continue;
    // Skip memory of arguments, which some ops return with no mark in the schema (_unsafe_view).
    for_each_result_tensor(call, [&](const at::Tensor& tensor) {
      if (!is_given(tensor)) scope->ops()->adopt(tensor);
    });
  }
  for_each_seeing([&](OpObserver& observer) { observer.after_op(call); });
}

bool OpObserver::all_skip_view(const at::Tensor& viewed) {
  if (trace_sink.load(std::memory_order_relaxed)) return false;
  for (const Scope* scope = current_scope; scope; scope = scope->next_to_see_ops()) {
    if (scope->ops() && !scope->ops()->skips_view(viewed)) return false;
  }
  return true;
}

void OpObserver::all_before_part(const OpCall& call) {
  for_each_seeing([&](OpObserver& observer) { observer.before_part(call); });
  if (TraceSink* const sink = trace_sink.load(std::memory_order_acquire))
    sink->before_part(Scope::current_trace_scope(), call);
}

void OpObserver::all_after_part(const OpCall& call) {
  if (TraceSink* const sink = trace_sink.load(std::memory_order_acquire))
    sink->after_part(Scope::current_trace_scope(), call);
  for_each_seeing([&](OpObserver& observer) { observer.after_part(call); });
}

void OpObserver::all_op_threw(const OpCall& call) {
  if (TraceSink* const sink = trace_sink.load(std::memory_order_acquire))
    sink->op_threw(Scope::current_trace_scope(), call);
  for_each_seeing([&](OpObserver& observer) { observer.op_threw(call); });
}

void OpObserver::all_after_data(const at::Tensor& tensor) {
  for_each_seeing([&](OpObserver& observer) { observer.after_data(tensor); });
}

void OpObserver::all_before_set_data(const at::Tensor& tensor) {
  for_each_seeing([&](OpObserver& observer) { observer.before_set_data(tensor); });
}

void OpObserver::all_adopt(const at::Tensor& tensor) {
  for_each_here([&](OpObserver& observer) { observer.adopt(tensor); });
}

void OpObserver::all_adopt_part(const at::Tensor& tensor) {
  for_each_here([&](OpObserver& observer) { observer.adopt_part(tensor); });
}

void OpObserver::all_check_handler_write(const OpInfo& info, const std::string& op,
                                         const c10::Storage& storage, int64_t modes) {
  for (const Scope* scope = current_scope; scope; scope = scope->next_to_see_ops()) {
    if (scope->ops() && !scope->was_before(modes))
      scope->ops()->check_handler_write(info, op, storage);
  }
}

at::Tensor OpObserver::as_seen(const Scope& scope, const at::Tensor& tensor) {
  return stand_in_from(scope.next_to_see_ops(), tensor);
}

at::Tensor OpObserver::current_stand_in(const at::Tensor& tensor) {
  return stand_in_from(current_scope, tensor);
}

torch::autograd::Edge OpObserver::current_stand_in(const torch::autograd::Edge& edge) {
  return stand_in_from(current_scope, edge);
}

}  // namespace remat
