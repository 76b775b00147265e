// SPDX-License-Identifier: BSD-3-Clause

// Finding a pair of hooks on a thread, and making it the only one.
#include "user_pair.h"

#include <atomic>

#include <remat/tape/recomputing_pair.h>

namespace remat {
namespace {

using PythonHooks = at::SavedTensorDefaultHooks;

std::atomic<RecomputingPair> recomputing_pair{nullptr};

}  // namespace

void set_recomputing_pair(RecomputingPair test) {
  recomputing_pair = test;
}

bool is_recomputing_pair(const c10::SafePyObject& pack) {
  const RecomputingPair test = recomputing_pair.load(std::memory_order_relaxed);
  return test && test(pack);
}

ScopePlace ScopePlace::here() {
  return {Scope::current(), PythonHooks::get_tls_state().stack.size()};
}

/// The innermost pair on PyTorch's stack, among those with positions in [begin, end), that keeps
/// tensors; empty if there is none.
UserPair UserPair::of_python(size_t begin, size_t end) {
  UserPair pair;
  if (begin >= end) return pair;
  auto stack = PythonHooks::get_tls_state().stack;
  while (stack.size() > end) stack.pop();
  while (stack.size() > begin && is_recomputing_pair(stack.top().first)) stack.pop();
  if (stack.size() > begin) pair.python_.emplace(stack.top());
  return pair;
}

UserPair UserPair::inside(const ScopePlace& place) {
  size_t depth = PythonHooks::get_tls_state().stack.size();
  for (Scope* scope = Scope::current(); scope && scope != place.scope; scope = scope->previous()) {
    if (UserPair pair = of_python(scope->python_hooks_depth(), depth)) return pair;
    depth = scope->python_hooks_depth();
    if (auto hooks = scope->opened_hooks()) return UserPair(std::move(hooks));
  }
  return of_python(place.python_hooks, depth);
}

UserPair UserPair::inside(const Scope& scope, Keep keep) {
  const Scope* region = &scope;
  for (const Scope* outer = &scope; outer && keep == Keep::kAllRegions; outer = outer->previous()) {
    if (!outer->is_user_hooks()) region = outer;
  }
  return inside({region, region->python_hooks_depth()});
}

std::any UserPair::capture_context() const {
  return hooks_ ? UserHooksScope::capture(*hooks_) : std::any();
}

PairScope::PairScope(const UserPair& pair, bool in_replay)
    : python_hooks_(PythonHooks::get_tls_state()) {
  at::impl::SavedTensorDefaultHooksTLS alone = python_hooks_;
  alone.stack = {};
  if (pair.python_ && !in_replay) alone.stack.push(*pair.python_);
  PythonHooks::set_tls_state(alone);
  if (pair.hooks_ && !in_replay) hooks_.emplace(pair.hooks_, UserHooksScope::Of::kKeeping);
}

PairScope::~PairScope() {
  hooks_.reset();
  PythonHooks::set_tls_state(python_hooks_);
}

}  // namespace remat
