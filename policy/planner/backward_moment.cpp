// SPDX-License-Identifier: BSD-3-Clause

// Which ops wait for which in a region's backward, and what is held meanwhile.
#include <algorithm>

#include "lower_bound.h"

namespace remat::detail {

namespace {

/// Which backwards wait for which others, through gradients.
class Waiting {
 public:
  Waiting(const Block& block, int op)
      : block_(block), before_(block.ops.size(), 0), after_(block.ops.size(), 0) {
    // Readers of an op's first out have their backward before the op's.
    after_[op] = 1;
    for (int u = op; u >= 0; --u) {
      if (after_[u]) mark_producers(u);
    }
    before_[op] = 1;
    const std::vector<char> reached = ops_with_gradient(block);
    for (int v = op + 1; v < static_cast<int>(block.ops.size()); ++v) {
      const std::vector<int>& ins = block.ops[v].ins;
      const bool waits = std::any_of(ins.begin(), ins.end(), [&](int t) {
        return block_.tensors[t].has_gradient && t != 0 && before_[block_.tensors[t].producer] != 0;
      });
      if (waits && reached[v]) before_[v] = 1;
    }
    after_[op] = 0;
  }

  /// True if v's backward waits for the op's.
  bool after(int v) const { return after_[v] != 0; }
  /// True if w is the op, or if w's backward must end before the op's begins.
  bool before(int w) const { return before_[w] != 0; }
  bool input_waits() const { return input_waits_; }
  bool reaches_output() const { return before_[block_.tensors[block_.output].producer] != 0; }

 private:
  void mark_producers(int u) {
    for (const int in : block_.ops[u].ins) {
      if (!block_.tensors[in].has_gradient) continue;
      if (in == 0) {
        input_waits_ = true;
      } else {
        after_[block_.tensors[in].producer] = 1;
      }
    }
  }

  const Block& block_;
  std::vector<char> before_;
  std::vector<char> after_;
  bool input_waits_ = false;
};

BackwardMoment moment_of(const Block& block, size_t position, int op, const Waiting& waiting) {
  const BlockOp& self = block.ops[op];
  BackwardMoment moment{position, self.bwd_tmp, false, block};
  std::vector<char> gradient(block.tensors.size(), 0);
  gradient[self.outs[0]] = 1;
  for (size_t w = 0; w < block.ops.size(); ++w) {
    if (!waiting.before(static_cast<int>(w))) continue;
    for (const int in : block.ops[w].ins) {
      // Such a gradient is allocated by now, and a later backward reads it.
      const bool to_come = in == 0 || waiting.after(block.tensors[in].producer);
      if (block.tensors[in].has_gradient && (to_come || static_cast<int>(w) == op))
        gradient[in] = 1;
    }
  }
  for (size_t t = 0; t < gradient.size(); ++t) {
    if (gradient[t]) moment.held_bytes += block.tensors[t].bytes;
  }
  for (const int need : self.backward_needs) {
    moment.held_bytes += block.tensors[need].bytes;
    if (need == 0) moment.holds_input = true;
    moment.rest.tensors[need].bytes = 0;
  }
  for (BlockTensor& tensor : moment.rest.tensors) tensor.first_backward_user = -1;
  for (size_t v = 0; v < block.ops.size(); ++v) {
    if (!waiting.after(static_cast<int>(v))) {
      moment.rest.ops[v].backward_needs.clear();
      continue;
    }
    for (const int need : block.ops[v].backward_needs) {
      int& first = moment.rest.tensors[need].first_backward_user;
      if (first < 0) first = static_cast<int>(v);
    }
  }
  return moment;
}

}  // namespace

std::vector<BackwardMoment> backward_moments(const Block& block, size_t position, size_t count) {
  std::vector<BackwardMoment> moments;
  for (size_t u = 0; u < block.ops.size(); ++u) {
    const Waiting waiting(block, static_cast<int>(u));
    if (!waiting.input_waits() || !waiting.reaches_output()) continue;
    moments.push_back(moment_of(block, position, static_cast<int>(u), waiting));
  }
  std::stable_sort(
      moments.begin(), moments.end(),
      [](const BackwardMoment& a, const BackwardMoment& b) { return a.held_bytes > b.held_bytes; });
  if (moments.size() > count)
    moments.erase(moments.begin() + static_cast<std::ptrdiff_t>(count), moments.end());
  return moments;
}

}  // namespace remat::detail
