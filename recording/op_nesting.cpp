// SPDX-License-Identifier: BSD-3-Clause

#include "op_nesting.h"

#include <cstdint>
#include <unordered_map>

namespace remat::detail {

OpNesting::OpNesting(const Recording& recording) {
  std::unordered_map<uint32_t, std::vector<size_t>> running;  // by thread, the outermost first
  callers_.reserve(recording.ops.size());
  for (size_t i = 0; i < recording.ops.size(); ++i) {
    std::vector<size_t>& here = running[recording.ops[i].thread];
    if (here.size() > recording.ops[i].depth) here.resize(recording.ops[i].depth);
    callers_.push_back(here.empty() ? kNoOp : here.back());
    here.push_back(i);
  }
}

size_t OpNesting::outermost(size_t op) const {
  while (callers_[op] != kNoOp) op = callers_[op];
  return op;
}

bool OpNesting::is_part_of(size_t op, size_t whole) const {
  // Callers come before the ops that they call.
  while (op != kNoOp && op > whole) op = callers_[op];
  return op == whole;
}

}  // namespace remat::detail
