// SPDX-License-Identifier: BSD-3-Clause

// Hiding scopes of this thread temporarily.
#pragma once

#include <ATen/SavedTensorHooks.h>

#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>

#include <remat/engine/export.h>
#include <remat/policy/policy.h>

namespace remat {

class Scope;

/// Hides all scopes of this thread while alive, so that user callbacks run as if outside every
/// region and their ops are not intercepted.
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

/// Destroys `held` as if outside every region, since its destructor may run user code.
template <class T>
void drop_unseen(T&& held) noexcept {
  const SuspendScopes suspend;
  const std::remove_reference_t<T> dying = std::forward<T>(held);
}

/// Hides a scope and everything inside it, including PyTorch's own hooks, while alive.
class REMAT_API HiddenScopes {
 public:
  /// Also hides the user hooks directly around `scope` (remat's and PyTorch's), because tensors
  /// saved meanwhile are remat's own.
  explicit HiddenScopes(const Scope& scope);
  /// With Keep::kAllRegions, also hides the outermost region and everything inside that region.
  /// Tensors saved meanwhile go to the user's hooks or the region around what is hidden.
  HiddenScopes(const Scope& scope, Keep keep);
  HiddenScopes(const HiddenScopes&) = delete;
  HiddenScopes& operator=(const HiddenScopes&) = delete;
  ~HiddenScopes();

 private:
  void hide(const Scope& scope);
  void hide_python_hooks(size_t count);

  Scope* hidden_;
  std::optional<at::impl::SavedTensorDefaultHooksTLS> python_hooks_;  // The hooks before hiding.
};

}  // namespace remat
