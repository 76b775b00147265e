// SPDX-License-Identifier: BSD-3-Clause

// Finding the user hooks that get what a region keeps.
#pragma once

#include <ATen/SavedTensorHooks.h>
#include <c10/core/SafePyObject.h>

#include <any>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include <remat/engine/hidden_scopes.h>
#include <remat/engine/saved_tensors_hooks.h>
#include <remat/engine/scope.h>
#include <remat/policy/policy.h>

namespace remat {

/// A position in the thread's stack of scopes. What was opened later is inside this position.
struct ScopePlace {
  const Scope* scope = nullptr;  ///< The innermost scope at this position.
  size_t python_hooks = 0;       ///< Depth of PyTorch's own hook stack.

  static ScopePlace here();
};

/// A pair of hooks, from remat's or PyTorch's stack, or none.
class UserPair {
 public:
  UserPair() = default;
  explicit UserPair(std::shared_ptr<const SavedTensorsHooks> hooks) : hooks_(std::move(hooks)) {}

  /// The innermost pair of this thread that was opened inside `place`.
  static UserPair inside(const ScopePlace& place);

  /// The innermost pair opened in the function of the region that `scope` runs or, with
  /// Keep::kAllRegions, in the function of the outermost region around that region.
  static UserPair inside(const Scope& scope, Keep keep);

  explicit operator bool() const { return hooks_ || python_; }

  /// remat's hooks; null for none, and for a pair of PyTorch's.
  const SavedTensorsHooks* hooks() const { return hooks_.get(); }

  /// Captures the context that the pair wants to remember.
  std::any capture_context() const;

 private:
  friend class PairScope;
  using PythonPair = std::pair<c10::SafePyObject, c10::SafePyObject>;

  static UserPair of_python(size_t begin, size_t end);

  std::shared_ptr<const SavedTensorsHooks> hooks_;
  std::optional<PythonPair> python_;
};

/// While alive, only `pair` gets what autograd saves on this thread. In a replay no hooks run and
/// tensors stay as they are, because the forward has packed them.
class PairScope {
 public:
  PairScope(const UserPair& pair, bool in_replay);
  PairScope(const PairScope&) = delete;
  PairScope& operator=(const PairScope&) = delete;
  ~PairScope();

 private:
  SuspendScopes suspended_;
  at::impl::SavedTensorDefaultHooksTLS python_hooks_;  // PyTorch's hook stack, to restore.
  std::optional<UserHooksScope> hooks_;
};

}  // namespace remat
