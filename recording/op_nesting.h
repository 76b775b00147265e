// SPDX-License-Identifier: BSD-3-Clause

// Which op has called which.
#pragma once

#include <cstddef>
#include <vector>

#include <remat/recording/recording.h>
#include <remat/recording/replay_links.h>

namespace remat::detail {

/// By places in Recording::ops.
class OpNesting {
 public:
  explicit OpNesting(const Recording& recording);

  /// The op that has called it; kNoOp: none has.
  size_t caller(size_t op) const { return callers_[op]; }

  /// Itself or the op that no other has called.
  size_t outermost(size_t op) const;

  /// True for an op and for those that it calls.
  bool is_part_of(size_t op, size_t whole) const;

 private:
  std::vector<size_t> callers_;
};

}  // namespace remat::detail
