// SPDX-License-Identifier: BSD-3-Clause

// The call tree of recorded ops. For each argument of an op, a number for its storage (instead of
// the address, which differs from run to run), and the op that last made or wrote that storage.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
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

struct StorageOrigin {
  uint64_t storage = 0;  ///< Unique in the recording; 0: no storage.
  /// The innermost op that last made or wrote the storage, as an index into Recording::ops; kNoOp
  /// if no recorded op did.
  size_t maker = kNoOp;
};

/// Origins by index into Recording::ops, one for each of OpEvent::arguments.
std::vector<std::vector<StorageOrigin>> argument_origins(const Recording& recording);

/// The name without namespace and overload: "add_" for "aten::add_.Tensor".
std::string_view base_name(std::string_view op);

/// True for ops that return an argument that they wrote: "aten::add_.Tensor", "aten::mul.out".
bool writes_in_place(std::string_view op);

}  // namespace remat::detail
