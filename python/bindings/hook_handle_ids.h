// SPDX-License-Identifier: BSD-3-Clause

// Repeats in a replay the ids of the hook handles that the forward got.
#pragma once

#include <cstdint>

namespace remat::python {

/// Note [Handles of hooks]: a function may store the handle of a hook outside (self.handle = ...)
/// to remove the hook later. Its replay stores another handle there, whose hook TensorHookDicts
/// removes again. A handle's id is the key of its hook in a dict; with the key that the forward's
/// handle had, the replay's handle removes the forward's hook.

/// The handle ids of a function's forward. Construct and use under the GIL.
class HookHandleIds {
 public:
  HookHandleIds();

  /// Call when the forward has run: if it made no handles, none need the same ids.
  void finish_forward();

  /// The id of the next handle.
  static int64_t next();

  /// Notes that code which runs in the forward only made handles on this thread.
  static void note_in_forward_only();

 private:
  friend class HookHandleIdsAgain;

  int64_t first_;
  uint64_t in_forward_only_;
  bool needed_ = true;
};

/// While alive, the handles of a replay get the ids that they had in the forward. Use under the
/// GIL.
class HookHandleIdsAgain {
 public:
  explicit HookHandleIdsAgain(const HookHandleIds& forward);
  HookHandleIdsAgain(const HookHandleIdsAgain&) = delete;
  HookHandleIdsAgain& operator=(const HookHandleIdsAgain&) = delete;
  ~HookHandleIdsAgain();

 private:
  int64_t present_ = -1;  // negative: nothing to restore
};

}  // namespace remat::python
