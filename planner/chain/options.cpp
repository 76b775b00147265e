// SPDX-License-Identifier: BSD-3-Clause

// Measures and enumerates the options of a region.
#include <remat/planner/options.h>

#include <algorithm>
#include <tuple>

#include "keep_hull.h"

namespace remat::detail {

namespace {

int64_t measure_forward(const Block& block, const std::vector<char>& kept) {
  int64_t live = 0;
  int64_t peak = 0;
  for (size_t u = 0; u < block.ops.size(); ++u) {
    const BlockOp& op = block.ops[u];
    for (const int out : op.outs) live += block.tensors[out].bytes;
    peak = std::max(peak, live + op.fwd_tmp);
    const auto free_after = [&](int t) {
      if (block.inner(t) && !kept[t] && block.tensors[t].last_reader == static_cast<int>(u)) {
        live -= block.tensors[t].bytes;
      }
    };
    for (const int in : op.ins) free_after(in);
    for (const int out : op.outs) free_after(out);
  }
  return peak;
}

/// Last op of the replay that reads each tensor; -1 if there is none.
std::vector<int> last_replay_readers(const Block& block, const OpSet& rerun) {
  std::vector<int> last(block.tensors.size(), -1);
  for (size_t u = 0; u < block.ops.size(); ++u) {
    if (!rerun[u]) continue;
    for (const int in : block.ops[u].ins) last[in] = static_cast<int>(u);
  }
  return last;
}

class BackwardMeter {
 public:
  BackwardMeter(const Block& block, const OpSet& rerun, const std::vector<char>& kept)
      : block_(block), rerun_(rerun), alive_(kept), gradient_(block.tensors.size(), 0) {}

  int64_t run() {
    for (size_t t = 0; t < alive_.size(); ++t) {
      if (alive_[t]) live_ += block_.tensors[t].bytes;
    }
    if (output_needed(block_, rerun_)) allocate(block_.output);
    gradient_[block_.output] = 1;
    live_ += block_.output_bytes();
    replay();
    for (size_t u = block_.ops.size(); u-- > 0;) backward(static_cast<int>(u));
    return peak_;
  }

 private:
  void allocate(int t) {
    if (alive_[t]) return;
    alive_[t] = 1;
    live_ += block_.tensors[t].bytes;
  }
  void release(int t) {
    if (!alive_[t]) return;
    alive_[t] = 0;
    live_ -= block_.tensors[t].bytes;
  }

  void note(int64_t workspace) { peak_ = std::max(peak_, live_ + workspace); }

  void replay() {
    const std::vector<int> last_reader = last_replay_readers(block_, rerun_);
    for (size_t u = 0; u < block_.ops.size(); ++u) {
      if (!rerun_[u]) continue;
      const BlockOp& op = block_.ops[u];
      for (const int out : op.outs) allocate(out);
      note(op.fwd_tmp);
      const auto free_after = [&](int t) {
        if (t != 0 && block_.tensors[t].first_backward_user < 0 &&
            last_reader[t] <= static_cast<int>(u))
          release(t);
      };
      for (const int in : op.ins) free_after(in);
      for (const int out : op.outs) free_after(out);
    }
  }

  void backward(int u) {
    const BlockOp& op = block_.ops[u];
    for (const int in : op.ins) {
      if (!block_.tensors[in].has_gradient || gradient_[in]) continue;
      gradient_[in] = 1;
      live_ += block_.tensors[in].bytes;
    }
    note(op.bwd_tmp);
    const int out = op.outs[0];
    if (gradient_[out]) {
      gradient_[out] = 0;
      live_ -= block_.tensors[out].bytes;
    }
    for (const int need : op.backward_needs) {
      if (need != 0 && block_.tensors[need].first_backward_user == u) release(need);
    }
  }

  const Block& block_;
  const OpSet& rerun_;
  std::vector<char> alive_;
  std::vector<char> gradient_;
  int64_t live_ = 0;
  int64_t peak_ = 0;
};

/// Returns all sets of ops that contain no dead ops, for blocks of few ops.
std::vector<OpSet> all_rerun_sets(const Block& block) {
  const size_t n = block.ops.size();
  // Per op: whether a backward needs one of its outs, and which ops read one.
  std::vector<char> needed(n, 0);
  std::vector<uint32_t> readers(n, 0);
  for (size_t u = 0; u < n; ++u) {
    for (const int out : block.ops[u].outs) {
      if (out != block.output && block.tensors[out].first_backward_user >= 0) needed[u] = 1;
    }
    for (const int in : block.ops[u].ins) {
      if (block.inner(in)) readers[block.tensors[in].producer] |= uint32_t{1} << u;
    }
  }
  std::vector<char> seen(size_t{1} << n, 0);
  std::vector<OpSet> sets;
  for (uint32_t mask = 0; mask < (uint32_t{1} << n); ++mask) {
    uint32_t rerun = 0;
    for (size_t u = n; u-- > 0;) {
      const uint32_t bit = uint32_t{1} << u;
      if ((mask & bit) != 0 && (needed[u] != 0 || (readers[u] & rerun) != 0)) rerun |= bit;
    }
    if (seen[rerun] != 0) continue;
    seen[rerun] = 1;
    sets.emplace_back(rerun);
  }
  return sets;
}

bool beats(const Option& a, const Option& b) {
  return a.time <= b.time && a.kept <= b.kept && a.forward_peak <= b.forward_peak &&
         a.backward_peak <= b.backward_peak;
}

uint64_t low_bits(const OpSet& set) {
  return (set & OpSet(~uint64_t{0})).to_ullong();
}

}  // namespace

OpSet all_ops(const Block& block) {
  return ~OpSet() >> (max_region_ops - block.ops.size());
}

OpSet without_dead_ops(const Block& block, OpSet recompute) {
  std::vector<char> needed(block.tensors.size(), 0);
  for (size_t t = 0; t < needed.size(); ++t)
    needed[t] = block.tensors[t].first_backward_user >= 0 ? 1 : 0;
  for (size_t u = block.ops.size(); u-- > 0;) {
    if (!recompute[u]) continue;
    const std::vector<int>& outs = block.ops[u].outs;
    const bool runs = std::any_of(outs.begin(), outs.end(),
                                  [&](int t) { return t != block.output && needed[t]; });
    recompute[u] = runs;
    if (!runs) continue;
    for (const int in : block.ops[u].ins) needed[in] = 1;
  }
  return recompute;
}

std::vector<char> kept_tensors(const Block& block, const OpSet& rerun) {
  std::vector<char> kept(block.tensors.size(), 0);
  const auto keep = [&](int t) {
    if (block.inner(t) && !rerun[block.tensors[t].producer]) kept[t] = 1;
  };
  for (size_t u = 0; u < block.ops.size(); ++u) {
    for (const int need : block.ops[u].backward_needs) keep(need);
    if (!rerun[u]) continue;
    for (const int in : block.ops[u].ins) keep(in);
  }
  return kept;
}

bool output_needed(const Block& block, const OpSet& rerun) {
  if (block.tensors[block.output].first_backward_user >= 0) return true;
  for (size_t u = 0; u < block.ops.size(); ++u) {
    const std::vector<int>& ins = block.ops[u].ins;
    if (rerun[u] && std::find(ins.begin(), ins.end(), block.output) != ins.end()) return true;
  }
  return false;
}

Option measure_option(const Block& block, const OpSet& rerun) {
  Option option;
  option.rerun = rerun;
  const std::vector<char> kept = kept_tensors(block, rerun);
  for (size_t t = 0; t < kept.size(); ++t) {
    if (kept[t]) option.kept += block.tensors[t].bytes;
  }
  for (size_t u = 0; u < block.ops.size(); ++u) {
    if (rerun[u]) option.time += block.ops[u].fwd;
  }
  option.forward_peak = measure_forward(block, kept);
  option.backward_peak = BackwardMeter(block, rerun, kept).run();
  return option;
}

int64_t forward_only_peak(const Block& block) {
  return measure_forward(block, std::vector<char>(block.tensors.size(), 0));
}

std::vector<Option> pareto_filter(std::vector<Option> options) {
  const auto order = [](const Option& option) {
    return std::make_tuple(option.time, option.kept, option.forward_peak, option.backward_peak,
                           option.rerun.count(), low_bits(option.rerun));
  };
  std::sort(options.begin(), options.end(),
            [&](const Option& a, const Option& b) { return order(a) < order(b); });
  std::vector<Option> best;
  for (const Option& option : options) {
    if (std::none_of(best.begin(), best.end(),
                     [&](const Option& other) { return beats(other, option); })) {
      best.push_back(option);
    }
  }
  return best;
}

std::vector<Option> pareto_options(const Block& block, int exact_ops) {
  const bool exact = block.ops.size() <= static_cast<size_t>(exact_ops);
  const std::vector<OpSet> sets = exact ? all_rerun_sets(block) : hull_rerun_sets(block);
  std::vector<Option> options;
  options.reserve(sets.size());
  for (const OpSet& set : sets) options.push_back(measure_option(block, set));
  return pareto_filter(std::move(options));
}

}  // namespace remat::detail
