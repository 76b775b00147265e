// SPDX-License-Identifier: BSD-3-Clause

// Deciding which nested regions have tapes.
#pragma once

#include <remat/tape/export.h>

namespace remat {

/// The part of a scope that decides which nested regions have tapes. See Note [Nested tapes]. Only
/// on the scope's thread.
class REMAT_API NestedTapes {
 public:
  NestedTapes() = default;
  NestedTapes(const NestedTapes&) = delete;
  NestedTapes& operator=(const NestedTapes&) = delete;
  virtual ~NestedTapes() = default;

  /// True if regions that begin here may be replayed from tapes.
  virtual bool are_allowed() const = 0;

  /// A region begins here that would have a tape if `wanted`. Returns whether it has one; a replay
  /// decides as the forward did.
  virtual bool decide(bool wanted) = 0;

  /// Returns are_allowed() of this thread's innermost scope with this part; true if there is none.
  static bool allowed_here();

  /// Calls decide() of the thread's scopes, the outermost first.
  static bool decide_here(bool wanted);
};

}  // namespace remat
