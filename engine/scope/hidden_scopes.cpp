// SPDX-License-Identifier: BSD-3-Clause

#include <remat/engine/hidden_scopes.h>

#include <remat/engine/interception_bits.h>
#include <remat/engine/saved_original.h>
#include <remat/engine/scope.h>

#include "scope_stack.h"

namespace remat {
namespace {

// Number of HiddenScopes alive.
[[gnu::tls_model("initial-exec")]] thread_local size_t hidden_depth = 0;

}  // namespace

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

HiddenScopes::~HiddenScopes() {
  --hidden_depth;
  current_scope = hidden_;
  if (python_hooks_) at::SavedTensorDefaultHooks::set_tls_state(*python_hooks_);
}

/// Hides `scope`, which must be on the current stack, and everything inside it.
void HiddenScopes::hide(const Scope& scope) {
  current_scope = scope.previous();
  hide_python_hooks(scope.python_hooks_depth());
}

/// Hides all of PyTorch's hook pairs but the outermost `count`.
void HiddenScopes::hide_python_hooks(size_t count) {
  const auto& python = at::SavedTensorDefaultHooks::get_tls_state();
  if (python.stack.size() <= count) return;
  if (!python_hooks_) python_hooks_ = python;
  at::impl::SavedTensorDefaultHooksTLS around = python;
  while (around.stack.size() > count) around.stack.pop();
  at::SavedTensorDefaultHooks::set_tls_state(around);
}

// PyTorch's pairs are hidden, too: torch.utils.checkpoint raises unless its recomputation packs as
// many tensors, but how many tensors a tape holds depends on which of them share memory.
HiddenScopes::HiddenScopes(const Scope& scope) : hidden_(current_scope) {
  ++hidden_depth;
  hide(scope);
  while (current_scope && current_scope->user_hooks()) hide(*current_scope);
  hide_python_hooks(current_scope ? current_scope->python_hooks_depth() : 0);
}

HiddenScopes::HiddenScopes(const Scope& scope, Keep keep) : hidden_(current_scope) {
  ++hidden_depth;
  hide(scope);
  if (keep == Keep::kInnermostRegion) return;
  for (const Scope* outer = current_scope; outer; outer = outer->previous()) {
    if (!outer->user_hooks()) hide(*outer);
  }
}

}  // namespace remat
