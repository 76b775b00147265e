// SPDX-License-Identifier: BSD-3-Clause

// The user hooks that get what a region keeps.
#pragma once

#include <ATen/SavedTensorHooks.h>
#include <c10/core/SafePyObject.h>

#include <any>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>

#include <remat/policy/policy.h>
#include <remat/tape/hidden_scopes.h>
#include <remat/tape/saved_tensors_hooks.h>
#include <remat/tape/scope.h>

namespace remat {

/// A place in the thread's scopes: all that are inside of it were opened after it.
struct ScopePlace {
  const Scope* scope = nullptr;  ///< The innermost one there.
  size_t python_hooks = 0;       ///< On PyTorch's own stack.

  static ScopePlace here();
};

/// A pair of hooks, of remat's or of PyTorch's own; or none.
class UserPair {
 public:
  UserPair() = default;
  explicit UserPair(std::shared_ptr<const SavedTensorsHooks> hooks) : hooks_(std::move(hooks)) {}

  /// The nearest one of this thread that was opened inside `place`.
  static UserPair inside(const ScopePlace& place);

  /// The nearest one that was opened in the function of the region of `scope`, which is open; with
  /// Keep::kAllRegions, of the outermost region.
  static UserPair inside(const Scope& scope, Keep keep);

  explicit operator bool() const { return hooks_ || python_; }

  /// What it wants to remember of this moment.
  std::any capture_context() const;

 private:
  friend class PairScope;
  using PythonPair = std::pair<c10::SafePyObject, c10::SafePyObject>;

  static UserPair of_python(size_t begin, size_t end);

  std::shared_ptr<const SavedTensorsHooks> hooks_;
  std::optional<PythonPair> python_;
};

/// While alive, `pair` gets what autograd saves on this thread, and no other scope is open. In a
/// replay nothing does, as the forward has packed it: it stays as it is.
class PairScope {
 public:
  PairScope(const UserPair& pair, bool in_replay);
  PairScope(const PairScope&) = delete;
  PairScope& operator=(const PairScope&) = delete;
  ~PairScope();

 private:
  SuspendScopes suspended_;
  at::impl::SavedTensorDefaultHooksTLS python_hooks_;  // of before
  std::optional<UserHooksScope> hooks_;
};

}  // namespace remat
