// SPDX-License-Identifier: BSD-3-Clause

// Turns regions into block types, and scheduled regions into segments.
#include "step_chain.h"

#include <algorithm>
#include <map>
#include <set>

namespace remat::detail {

namespace {

// Limits that keep sums from overflowing: a region may run once for each region after it.
constexpr double most_bytes = 1e17;
constexpr Ticks most_region_ticks = Ticks{1000000000} * 1000000;
constexpr double most_chain_ticks = 4e18;

/// True if two regions differ in workspaces alone, so that they are planned as one type.
bool is_alike(const Block& a, const Block& b) {
  const auto same_op = [](const BlockOp& x, const BlockOp& y) {
    return x.fwd == y.fwd && x.bwd == y.bwd && x.ins == y.ins && x.outs == y.outs &&
           x.backward_needs == y.backward_needs;
  };
  return a.output == b.output && a.tensors == b.tensors &&
         std::equal(a.ops.begin(), a.ops.end(), b.ops.begin(), b.ops.end(), same_op);
}

void widen(Block& type, const Block& other) {
  for (size_t k = 0; k < type.ops.size(); ++k) {
    BlockOp& op = type.ops[k];
    op.fwd_tmp = std::max(op.fwd_tmp, other.ops[k].fwd_tmp);
    op.bwd_tmp = std::max(op.bwd_tmp, other.ops[k].bwd_tmp);
  }
}

constexpr size_t longest_run = 4;
constexpr size_t most_patterns = 6;
constexpr size_t most_merged_ops = 40;

bool can_merge(const Chain& chain, const std::vector<int>& run) {
  size_t ops = 0;
  for (const int type : run) ops += chain.types[type].ops.size();
  return ops <= most_merged_ops && std::set<int>(run.begin(), run.end()).size() == run.size();
}

/// Adds merges for recurring sequences of different regions, so that a sequence may be one region.
void add_merges(Chain& chain) {
  std::map<std::vector<int>, int> counts;
  for (size_t first = 0; first < chain.regions.size(); ++first) {
    for (size_t length = 2; length <= longest_run; ++length) {
      if (first + length > chain.regions.size()) break;
      const auto begin = chain.regions.begin() + static_cast<std::ptrdiff_t>(first);
      const std::vector<int> run(begin, begin + static_cast<std::ptrdiff_t>(length));
      if (can_merge(chain, run)) ++counts[run];
    }
  }
  std::vector<std::pair<int, std::vector<int>>> runs;
  for (const auto& [run, count] : counts) {
    if (count > 1) runs.emplace_back(-count, run);
  }
  std::sort(runs.begin(), runs.end());
  runs.resize(std::min(runs.size(), most_patterns));
  for (const auto& [count, run] : runs) {
    chain.merges.push_back({run, static_cast<int>(chain.types.size())});
    chain.types.push_back(merged_block(chain.types, run));
  }
}

/// Reads a schedule of the chain, position by position of the split chain.
class ScheduleReader {
 public:
  ScheduleReader(const StepGraph& graph, const StepChain& chain, const Chain& split,
                 const Schedule& schedule)
      : graph_(graph), chain_(chain), split_(split), schedule_(schedule) {
    find_segments();
  }

  std::pair<CutPlaces, std::vector<char>> run(const std::vector<char>& pinned) {
    for (const PlanGroup& group : schedule_.groups) {
      const std::pair segments(segment_of_[group.first], segment_of_[group.next]);
      StepGroups& groups = places_.second;  // two nested groups may become the same segments
      const bool is_new = std::find(groups.begin(), groups.end(), segments) == groups.end();
      if (segments.second - segments.first >= 2 && is_new) groups.push_back(segments);
    }
    keep_.assign(graph_.profile.values.size(), 0);
    for (const ScheduledRegion& region : schedule_.regions) keep_saved(region);
    for (size_t v = 0; v < keep_.size(); ++v) {
      if (pinned[graph_.profile.values[v].storage]) keep_[v] = 1;
    }
    return {std::move(places_), std::move(keep_)};
  }

 private:
  size_t op_count(size_t position) const {
    return split_.types[split_.regions[position]].ops.size();
  }

  const std::vector<int32_t>& records(size_t position, size_t op) const {
    const RegionPart& part = split_.parts[position];
    return chain_.regions[part.original].ops[part.first_op + op];
  }

  /// First and last record of a position.
  std::pair<int32_t, int32_t> span(size_t position) const {
    const bool is_whole_or_first = split_.parts[position].part == 0;
    const int32_t begin = chain_.regions[split_.parts[position].original].begin;
    std::pair<int32_t, int32_t> all(is_whole_or_first ? begin : graph_.size(), begin);
    for (size_t op = 0; op < op_count(position); ++op) {
      if (!is_whole_or_first) all.first = std::min(all.first, records(position, op).front());
      all.second = std::max(all.second, records(position, op).back());
    }
    return all;
  }

  /// Regions that run as one become one segment. So do parts of a region whose records interleave.
  void find_segments() {
    int32_t last_record = -1;
    for (const ScheduledRegion& region : schedule_.regions) {
      for (size_t i = 0; i < region.count; ++i) {
        const auto [first, last] = span(region.first + i);
        const bool continues = i > 0 || first <= last_record;
        if (!segment_of_.empty() && !continues) places_.first.push_back(first);
        last_record = std::max(last_record, last);
        segment_of_.push_back(static_cast<int32_t>(places_.first.size()));
      }
    }
    segment_of_.push_back(static_cast<int32_t>(places_.first.size()) + 1);
  }

  /// True if the innermost group around the position is one segment. The schedule runs such a group
  /// again before backward, and keeps results then. In the step, the replay of the segment is that
  /// second run, so the cuts need not keep these results.
  bool runs_within_its_segment(size_t position) const {
    const PlanGroup* inner = nullptr;
    for (const PlanGroup& group : schedule_.groups) {
      const auto at = static_cast<int>(position);
      if (at < group.first || at >= group.next) continue;
      if (inner == nullptr || group.next - group.first < inner->next - inner->first) inner = &group;
    }
    return inner != nullptr && segment_of_[inner->next] - segment_of_[inner->first] < 2;
  }

  void keep_saved(const ScheduledRegion& region) {
    size_t op_of_region = 0;
    for (size_t position = region.first; position < region.first + region.count; ++position) {
      const bool keeps = !runs_within_its_segment(position);
      for (size_t op = 0; op < op_count(position); ++op) {
        if (!region.rerun[op_of_region++] && keeps) keep_results(records(position, op));
      }
    }
  }

  void keep_results(const std::vector<int32_t>& records) {
    for (const int32_t j : records) {
      for (const int32_t v : graph_.results[j]) keep_[v] = 1;
    }
  }

  const StepGraph& graph_;
  const StepChain& chain_;
  const Chain& split_;
  const Schedule& schedule_;
  std::vector<int32_t> segment_of_;  // Per position, and the end
  CutPlaces places_;
  std::vector<char> keep_;  // Per value
};

}  // namespace

StepChain::StepChain(const StepGraph& graph, const ValueSpans& spans, const StepRegions& chosen) {
  int32_t begin = 0;
  for (size_t i = 0; i <= chosen.positions.size(); ++i) {
    const bool is_last = i == chosen.positions.size();
    const int32_t end = is_last ? graph.size() : chosen.positions[i];
    RegionBuilder builder(graph, spans, chosen.pinned, begin, end,
                          i == 0 ? -1 : chosen.passing[i - 1], is_last ? -1 : chosen.passing[i]);
    regions.push_back(builder.region());
    Block block = builder.take();
    std::vector<Block>& types = chain.types;
    const auto alike = std::find_if(types.begin(), types.end(),
                                    [&](const Block& type) { return is_alike(type, block); });
    chain.regions.push_back(static_cast<int>(alike - types.begin()));
    if (alike == types.end()) {
      types.push_back(std::move(block));
    } else {
      widen(*alike, block);
    }
    begin = end;
  }
  add_merges(chain);
}

bool StepChain::is_plannable() const {
  double bytes = 0;
  double ticks = 0;
  for (size_t i = 0; i < chain.regions.size(); ++i) {
    const Block& block = chain.types[chain.regions[i]];
    if (block.ops.size() > max_region_ops || (i > 0 && !passes_gradient(block))) return false;
    for (const BlockTensor& tensor : block.tensors)
      bytes += 2.0 * static_cast<double>(tensor.bytes);
    for (const BlockOp& op : block.ops) {
      bytes += static_cast<double>(op.fwd_tmp) + static_cast<double>(op.bwd_tmp);
      if (op.fwd > most_region_ticks || op.bwd > most_region_ticks) return false;
    }
    ticks += static_cast<double>(block.fwd + block.bwd);
  }
  return bytes <= most_bytes &&
         ticks * static_cast<double>(chain.regions.size() + 2) <= most_chain_ticks;
}

std::pair<CutPlaces, std::vector<char>> to_cuts(const StepGraph& graph, const StepChain& chain,
                                                const StepRegions& regions, const Chain& split,
                                                const Schedule& schedule) {
  return ScheduleReader(graph, chain, split, schedule).run(regions.pinned);
}

}  // namespace remat::detail
