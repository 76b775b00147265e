// SPDX-License-Identifier: BSD-3-Clause

// The call tree of recorded ops.
#pragma once

#include <cstddef>
#include <vector>

#include <remat/recording/recording.h>
#include <remat/recording/replay_links.h>

namespace remat::detail {

/// Ops are given as indices into Recording::ops.
class OpNesting {
 public:
  explicit OpNesting(const Recording& recording);

  /// The op that called `op`; kNoOp if none did.
  size_t caller(size_t op) const { return callers_[op]; }

  /// The outermost caller of `op`, or `op` itself.
  size_t outermost(size_t op) const;

  /// True if `op` is `whole` or is called by it, directly or not.
  bool is_part_of(size_t op, size_t whole) const;

 private:
  std::vector<size_t> callers_;
};

}  // namespace remat::detail
