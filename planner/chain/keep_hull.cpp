// SPDX-License-Identifier: BSD-3-Clause

// For fixed weights of time and bytes, the best set of rerun ops of a region is a minimum cut. The
// hull's corners are found recursively, each between two corners found before.
#include "keep_hull.h"

#include <unordered_set>

#include <remat/planner/min_cut.h>
#include <remat/planner/options.h>

namespace remat::detail {

namespace {

class Hull {
 public:
  Hull(const Block& block, const KeepBounds& bounds, const std::vector<Ticks>& rerun_time)
      : block_(block), bounds_(bounds), rerun_time_(rerun_time) {
    if (rerun_time_.empty()) {
      for (const BlockOp& op : block.ops) rerun_time_.push_back(op.fwd);
    }
    for (const BlockTensor& tensor : block.tensors) all_bytes_ += tensor.bytes;
    for (const Ticks time : rerun_time_) all_time_ += time;
  }

  std::vector<KeepPoint> run() {
    if (!possible()) return {};
    // The weights are so unequal that one criterion decides, and the other only breaks ties.
    const KeepPoint fastest = solve(static_cast<Int128>(all_bytes_) + 1, 1);
    const KeepPoint smallest = solve(1, static_cast<Int128>(all_time_) + 1);
    points_.push_back(fastest);
    if (smallest.bytes < fastest.bytes) {
      between(fastest, smallest);
      points_.push_back(smallest);
    }
    return std::move(points_);
  }

 private:
  /// True if there is a possible set of rerun ops: everything that must be read is available.
  bool possible() const {
    const auto needed = [&](int t) { return block_.tensors[t].first_backward_user >= 0; };
    if (!bounds_.input_available && needed(0)) return false;
    if (!bounds_.output_available && needed(block_.output)) return false;
    if (!bounds_.output_rerun) return true;
    return !reads_missing(block_.ops[block_.tensors[block_.output].producer]);
  }

  bool reads_missing(const BlockOp& op) const {
    for (const int in : op.ins) {
      if (in == 0 && !bounds_.input_available) return true;
      if (in == block_.output && !bounds_.output_available) return true;
    }
    return false;
  }

  KeepPoint solve(Int128 time_weight, Int128 byte_weight) const {
    const size_t ops = block_.ops.size();
    const auto op_node = [](size_t u) { return 2 + u; };
    const auto tensor_node = [&](int t) { return 2 + ops + static_cast<size_t>(t); };
    MinCut cut(2 + ops + block_.tensors.size());
    for (size_t u = 0; u < ops; ++u) {
      const BlockOp& op = block_.ops[u];
      cut.add_edge(op_node(u), MinCut::sink,
                   reads_missing(op) ? MinCut::unbounded() : time_weight * rerun_time_[u]);
      for (const int in : op.ins) {
        if (block_.inner(in) && block_.tensors[in].first_backward_user < 0) {
          cut.add_edge(op_node(u), tensor_node(in), MinCut::unbounded());
        }
      }
      for (const int out : op.outs) {
        if (!block_.inner(out)) continue;
        const bool needed = block_.tensors[out].first_backward_user >= 0;
        cut.add_edge(needed ? MinCut::source : tensor_node(out), op_node(u),
                     byte_weight * block_.tensors[out].bytes);
      }
    }
    if (bounds_.output_rerun) {
      cut.add_edge(MinCut::source, op_node(block_.tensors[block_.output].producer),
                   MinCut::unbounded());
    }
    const std::vector<char> side = cut.solve();
    KeepPoint point;
    for (size_t u = 0; u < ops; ++u) {
      if (!side[op_node(u)]) continue;
      point.rerun.set(u);
      point.time += rerun_time_[u];
    }
    const std::vector<char> kept = kept_tensors(block_, point.rerun);
    for (size_t t = 0; t < kept.size(); ++t) {
      if (kept[t]) point.bytes += block_.tensors[t].bytes;
    }
    return point;
  }

  /// Adds the corners strictly between two corners. The recursion depth is at most the number of
  /// corners, which is small.
  void between(const KeepPoint& a, const KeepPoint& b) {
    const Int128 time_weight = a.bytes - b.bytes;
    const Int128 byte_weight = b.time - a.time;
    if (byte_weight <= 0 || time_weight <= 0) return;
    const auto cost = [&](const KeepPoint& point) {
      return time_weight * point.time + byte_weight * point.bytes;
    };
    const KeepPoint middle = solve(time_weight, byte_weight);
    if (cost(middle) >= cost(a)) return;
    between(a, middle);
    points_.push_back(middle);
    between(middle, b);
  }

  const Block& block_;
  const KeepBounds& bounds_;
  std::vector<Ticks> rerun_time_;
  int64_t all_bytes_ = 0;
  Ticks all_time_ = 0;
  std::vector<KeepPoint> points_;
};

}  // namespace

std::vector<KeepPoint> keep_hull(const Block& block, const KeepBounds& bounds,
                                 const std::vector<Ticks>& rerun_time) {
  return Hull(block, bounds, rerun_time).run();
}

// Adds neighbours of the hull's sets, which may have lower peaks: the hull ignores peaks.
std::vector<OpSet> hull_rerun_sets(const Block& block) {
  std::vector<OpSet> sets;
  std::unordered_set<OpSet> seen;
  const auto add = [&](const OpSet& recompute) {
    const OpSet rerun = without_dead_ops(block, recompute);
    if (seen.insert(rerun).second) sets.push_back(rerun);
  };
  add(OpSet());
  add(all_ops(block));
  for (const KeepPoint& point : keep_hull(block, {})) add(point.rerun);
  const size_t centres = sets.size();
  for (size_t i = 0; i < centres; ++i) {
    for (size_t u = 0; u < block.ops.size(); ++u) add(OpSet(sets[i]).flip(u));
  }
  return sets;
}

}  // namespace remat::detail
