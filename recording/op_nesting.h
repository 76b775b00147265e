// SPDX-License-Identifier: BSD-3-Clause

// The call tree of recorded ops.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include <remat/recording/recording.h>
#include <remat/recording/replay_links.h>

namespace remat::detail {

/// Ops are given as indices into Recording::ops. Callers come before the ops that they call.
class OpNesting {
 public:
  explicit OpNesting(const Recording& recording) {
    std::unordered_map<uint32_t, std::vector<size_t>> running;  // by thread, the outermost first
    callers_.reserve(recording.ops.size());
    for (size_t i = 0; i < recording.ops.size(); ++i) {
      std::vector<size_t>& here = running[recording.ops[i].thread];
      if (here.size() > recording.ops[i].depth) here.resize(recording.ops[i].depth);
      callers_.push_back(here.empty() ? kNoOp : here.back());
      here.push_back(i);
    }
  }

  /// The op that called `op`; kNoOp if none did.
  size_t caller(size_t op) const { return callers_[op]; }

  /// The outermost caller of `op`, or `op` itself.
  size_t outermost(size_t op) const {
    while (callers_[op] != kNoOp) op = callers_[op];
    return op;
  }

  /// True if `op` is `whole` or is called by it, directly or not.
  bool is_part_of(size_t op, size_t whole) const {
    while (op != kNoOp && op > whole) op = callers_[op];
    return op == whole;
  }

 private:
  std::vector<size_t> callers_;
};

}  // namespace remat::detail
