// SPDX-License-Identifier: BSD-3-Clause

// Which regions inside others have tapes.
#pragma once

#include <remat/tape/export.h>

namespace remat {

/// The part of a scope that decides so. See Note [Nested tapes]. On the thread of the scope only.
class REMAT_API NestedTapes {
 public:
  NestedTapes() = default;
  NestedTapes(const NestedTapes&) = delete;
  NestedTapes& operator=(const NestedTapes&) = delete;
  virtual ~NestedTapes() = default;

  /// True if regions that begin here may be replayed from tapes.
  virtual bool are_allowed() const = 0;

  /// A region begins here that would have a tape if `wanted`. Returns whether it has one: in a
  /// replay, as in the forward.
  virtual bool decide(bool wanted) = 0;

  /// are_allowed() of this thread's innermost scope that decides; true if none does.
  static bool allowed_here();

  /// decide() of the scopes of this thread, the outermost first.
  static bool decide_here(bool wanted);
};

}  // namespace remat
