// SPDX-License-Identifier: BSD-3-Clause

// The thread-local stack of scopes.
#include <remat/engine/scope.h>

#include <ATen/SavedTensorHooks.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <pthread.h>

#include <utility>

#include <remat/engine/backward_observer.h>
#include <remat/engine/interception_bits.h>
#include <remat/engine/op_observer.h>
#include <remat/engine/region_run.h>
#include <remat/engine/saved_tensors_hooks.h>

#include "scope_stack.h"

namespace remat {
namespace {

// A forked child continues in the middle of its parent's regions, but is not part of them.
[[maybe_unused]] const int fork_handler = pthread_atfork(nullptr, nullptr, [] {
  current_scope = nullptr;
  switch_interception(false);
});

/// Returns a part of `scope`, or of the next scope outward that has such a part; null if none has.
template <class Part>
Part* part_from(const Scope* scope, Part* (Scope::*part)() const) {
  while (scope && !(scope->*part)()) scope = scope->previous();
  return scope ? (scope->*part)() : nullptr;
}

// Asks no scope around a replay, because a replay inside another replay begins regions that the
// outer forward did not record.
bool decide_from(const Scope* scope, bool wanted) {
  if (!scope) return wanted;
  const bool is_replay = scope->replay_id() != 0;
  const bool said = decide_from(is_replay ? nullptr : scope->next_to_see_ops(), wanted);
  return scope->run() ? scope->run()->decide_tape(said) : said;
}

}  // namespace

// GCC forgets the declaration's model if the definition has none.
[[gnu::tls_model("initial-exec")]] constinit thread_local Scope* current_scope = nullptr;
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
  leave();
}

void Scope::leave() {
  // In a forked child there are no scopes to return to.
  if (std::exchange(has_left_, true) || !current_scope) return;
  current_scope = previous_;
  switch_interception(ops_seen_around_);
}

int64_t Scope::modes_here() {
  return c10::impl::TorchDispatchModeTLS::stack_len();
}

bool Scope::has_python_hooks_inside() const {
  return at::SavedTensorDefaultHooks::get_tls_state().stack.size() > python_hooks_depth_;
}

const Region* Scope::region() const {
  return parts_.run ? &parts_.run->region() : nullptr;
}

uint64_t Scope::replay_id() const {
  return parts_.run ? parts_.run->replay_id() : 0;
}

NamedCalls* Scope::named_calls() const {
  return parts_.run ? &parts_.run->named_calls() : nullptr;
}

Scope* Scope::region_scope() {
  Scope* scope = this;
  while (scope && scope->user_hooks() && scope->user_hooks()->opened_hooks())
    scope = scope->previous_;
  return scope;
}

std::any Scope::capture_context() {
  return previous_ ? previous_->capture_context() : std::any();
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

TraceScope Scope::current_trace_scope() {
  TraceScope innermost;
  size_t regions = 0;
  for (const Scope* scope = current_scope; scope; scope = scope->previous_) {
    if (!scope->run()) continue;
    const TraceScope next = scope->run()->trace_scope();
    if (!innermost.region) {
      innermost = next;
    } else if (!innermost.parent) {
      innermost.parent = next.region;
    }
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

BackwardObserver* BackwardObserver::current() {
  return part_from(current_scope, &Scope::backwards);
}

BackwardObserver* BackwardObserver::around() const {
  return part_from(scope_.previous(), &Scope::backwards);
}

bool RegionRun::tapes_allowed_here() {
  const RegionRun* const run = part_from(current_scope, &Scope::run);
  return !run || run->allows_tapes();
}

bool RegionRun::decide_tape_here(bool wanted) {
  return decide_from(current_scope, wanted);
}

bool is_recomputing() {
  for (const Scope* scope = current_scope; scope; scope = scope->previous()) {
    if (scope->ops()) scope->ops()->phase_was_asked();
  }
  return Scope::is_in_replay();
}

}  // namespace remat
