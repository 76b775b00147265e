// SPDX-License-Identifier: BSD-3-Clause

// Hiding scopes of this thread for a time.
#pragma once

#include <ATen/SavedTensorHooks.h>

#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>

#include <remat/policy/policy.h>
#include <remat/tape/export.h>

namespace remat {

class Scope;

/// Hides all scopes of this thread while alive: user callbacks run as if outside every region, and
/// no op is seen.
class REMAT_API SuspendScopes {
 public:
  SuspendScopes();
  SuspendScopes(const SuspendScopes&) = delete;
  SuspendScopes& operator=(const SuspendScopes&) = delete;
  ~SuspendScopes();

 private:
  Scope* hidden_;
  bool ops_were_seen_;
};

/// Destroys `held` as if outside of every region: what dies may run code of the user.
template <class T>
void drop_unseen(T&& held) noexcept {
  const SuspendScopes suspend;
  const std::remove_reference_t<T> dying = std::forward<T>(held);
}

/// Hides a scope and everything inside it while alive, PyTorch's own hooks too.
class REMAT_API HiddenScopes {
 public:
  HiddenScopes(const HiddenScopes&) = delete;
  HiddenScopes& operator=(const HiddenScopes&) = delete;

 protected:
  HiddenScopes();
  ~HiddenScopes();

  /// Hides `scope`, which is the current one or around it.
  void hide(const Scope& scope);
  void hide_python_hooks(size_t count);

 private:
  Scope* hidden_;
  std::optional<at::impl::SavedTensorDefaultHooksTLS> python_hooks_;  // if some are hidden
};

/// Hides `scope`, the scopes inside it and user hooks right around it, PyTorch's own too, while
/// alive: what is saved then is remat's own.
class REMAT_API OuterScopes final : HiddenScopes {
 public:
  explicit OuterScopes(const Scope& scope);
};

/// Hides `scope` and the scopes inside it while alive; with Keep::kAllRegions, everything up to the
/// outermost region. What is saved then is kept for the user: by the hooks around, or an outer
/// region.
class REMAT_API ScopesAround final : HiddenScopes {
 public:
  ScopesAround(const Scope& scope, Keep keep);
};

}  // namespace remat
