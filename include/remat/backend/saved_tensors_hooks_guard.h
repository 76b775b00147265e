// SPDX-License-Identifier: BSD-3-Clause

// Saved-tensor hooks for a scope of C++ code.
#pragma once

#include <memory>

#include <remat/engine/export.h>
#include <remat/engine/saved_tensors_pair.h>

namespace remat {

class UserHooksScope;

/// While alive, passes every tensor that autograd saves on this thread to `hooks`, unless a guard
/// opened inside this one handles the tensor. A guard around a region gets the region's tensor
/// arguments; a guard inside a region gets what the code under it saves, which is then not
/// rematerialised. Must be destroyed on the thread that made it, innermost first. Throws ValueError
/// if pack or unpack is empty.
class REMAT_API SavedTensorsHooksGuard {
 public:
  explicit SavedTensorsHooksGuard(SavedTensorsHooks hooks);
  ~SavedTensorsHooksGuard();

 private:
  std::unique_ptr<UserHooksScope> scope_;
};

}  // namespace remat
