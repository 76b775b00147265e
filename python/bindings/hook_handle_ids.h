// SPDX-License-Identifier: BSD-3-Clause

// The numbers of the handles that a function gets for the hooks it sets.
#pragma once

#include <cstdint>

namespace remat::python {

/// Note [Handles of hooks]: a function may leave the handle of a hook outside (self.handle = ...),
/// to remove the hook later. Its replay leaves another handle there, of a hook that TensorHookDicts
/// takes back. A handle is the key of an entry in a dict of hooks; the replay's gets the key that
/// the forward's had, and so removes the forward's hook.

/// Which numbers handles got in the forward of a function. Made and used under the GIL.
class HookHandleIds {
 public:
  HookHandleIds();

  /// The function has run for the first time: if it made no handles, none need the same numbers.
  void finish_forward();

  /// The number that the next handle gets.
  static int64_t next();

  /// Handles were made on this thread by what runs in the forward only.
  static void note_in_forward_only();

 private:
  friend class HookHandleIdsAgain;

  int64_t first_;
  uint64_t in_forward_only_;
  bool needed_ = true;
};

/// While alive, the handles of a replay get the numbers they had in the forward. Under the GIL.
class HookHandleIdsAgain {
 public:
  explicit HookHandleIdsAgain(const HookHandleIds& forward);
  HookHandleIdsAgain(const HookHandleIdsAgain&) = delete;
  HookHandleIdsAgain& operator=(const HookHandleIdsAgain&) = delete;
  ~HookHandleIdsAgain();

 private:
  int64_t present_ = -1;  // left alone
};

}  // namespace remat::python
