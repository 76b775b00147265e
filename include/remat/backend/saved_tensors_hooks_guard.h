// SPDX-License-Identifier: BSD-3-Clause

// Saved-tensor hooks for a scope of C++ code.
#pragma once

#include <memory>

#include <remat/tape/export.h>
#include <remat/tape/saved_tensors_pair.h>

namespace remat {

class UserHooksScope;

/// While alive, `hooks` serve every tensor that autograd saves on this thread, innermost guard
/// first. Around a region they get the region's tensor arguments; inside one they get what the code
/// under the guard saves, which then is not rematerialised. Scoped: to be destroyed on the thread
/// that made it, innermost first. Throws ValueError if pack or unpack is empty.
class REMAT_API SavedTensorsHooksGuard {
 public:
  explicit SavedTensorsHooksGuard(SavedTensorsHooks hooks);
  SavedTensorsHooksGuard(const SavedTensorsHooksGuard&) = delete;
  SavedTensorsHooksGuard& operator=(const SavedTensorsHooksGuard&) = delete;
  ~SavedTensorsHooksGuard();

 private:
  std::unique_ptr<UserHooksScope> scope_;
};

}  // namespace remat
