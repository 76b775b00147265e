// SPDX-License-Identifier: BSD-3-Clause

// Makes block types of regions, and segments of a plan's rows.
#include "step_chain.h"

#include <algorithm>
#include <map>

#include "chain_merges.h"
#include "chain_region.h"

namespace remat::detail {

namespace {

constexpr size_t most_ops = 256;  // the planner's limit per region

/// A key that is equal for regions that may be planned as one type; workspaces may differ.
std::string shape_of(const BlockType& type) {
  std::string shape =
      std::to_string(type.input_bytes) + "|" + type.output + (type.input_grad ? "|" : "|first");
  const auto add = [&](const std::vector<std::string>& names) {
    for (const std::string& name : names) shape += name + ",";
    shape += ";";
  };
  for (const ProfileOp& op : type.ops) {
    shape += std::to_string(op.fwd_us) + "," + std::to_string(op.bwd_us) + ":";
    for (const ProfileTensor& out : op.outs)
      shape += out.name + "=" + std::to_string(out.bytes) + ",";
    add(op.ins);
    add(op.bwd_needs);
  }
  return shape;
}

void widen(BlockType& type, const BlockType& other) {
  for (size_t k = 0; k < type.ops.size(); ++k) {
    ProfileOp& op = type.ops[k];
    op.fwd_tmp_bytes = std::max(op.fwd_tmp_bytes, other.ops[k].fwd_tmp_bytes);
    op.bwd_tmp_bytes = std::max(op.bwd_tmp_bytes, other.ops[k].bwd_tmp_bytes);
  }
}

size_t op_number(const std::string& name) {
  return std::stoul(name.substr(name.rfind('.') + 1));
}

/// Translates a plan of the chain, row by row.
class PlanReader {
 public:
  PlanReader(const StepGraph& graph, const StepChain& chain, const Plan& plan)
      : graph_(graph), chain_(chain), plan_(plan) {
    int region = -1;
    for (const PlanRow& row : plan.table) {
      if (row.part == 0) ++region;
      region_of_row_.push_back(region);
    }
    find_segments();
  }

  CutProposal run(const std::vector<char>& pinned) {
    for (const PlanGroup& group : plan_.groups) {
      const std::pair segments(segment_of_row_[group.first], segment_of_row_[group.next]);
      auto& groups = out_.groups;  // nested groups may become the same segments
      const bool is_new = std::find(groups.begin(), groups.end(), segments) == groups.end();
      if (segments.second - segments.first >= 2 && is_new) groups.push_back(segments);
    }
    out_.keep.assign(graph_.profile.values.size(), 0);
    for (size_t row = 0; row < plan_.table.size(); ++row) {
      if (!runs_within_its_segment(static_cast<int>(row))) keep_saved(row);
    }
    for (size_t v = 0; v < out_.keep.size(); ++v) {
      if (pinned[graph_.profile.values[v].storage]) out_.keep[v] = 1;
    }
    return std::move(out_);
  }

 private:
  const std::vector<int32_t>& records(size_t row, const PlanOp& op) const {
    return chain_.regions[region_of_row_[row]].ops[op_number(op.name)];
  }

  /// Rows that run as one become one segment, and so do interleaved parts of a region.
  void find_segments() {
    int32_t last_record = -1;
    for (size_t row = 0; row < plan_.table.size(); ++row) {
      const PlanRow& planned = plan_.table[row];
      int32_t first = chain_.regions[region_of_row_[row]].begin;
      int32_t last = first;
      if (planned.part > 0) first = graph_.size();
      for (const PlanOp& op : planned.ops) {
        if (planned.part > 0) first = std::min(first, records(row, op).front());
        last = std::max(last, records(row, op).back());
      }
      const bool continues = planned.run_first != static_cast<int>(row) || first <= last_record;
      if (row > 0 && !continues) out_.positions.push_back(first);
      last_record = std::max(last_record, last);
      segment_of_row_.push_back(static_cast<int32_t>(out_.positions.size()));
    }
    segment_of_row_.push_back(static_cast<int32_t>(out_.positions.size()) + 1);
  }

  /// True if the row's innermost group is a single segment. Then the segment's replay is the run
  /// that would keep values for backward, so nothing of it is kept.
  bool runs_within_its_segment(int row) const {
    const PlanGroup* inner = nullptr;
    for (const PlanGroup& group : plan_.groups) {
      if (row < group.first || row >= group.next) continue;
      if (inner == nullptr || group.next - group.first < inner->next - inner->first) inner = &group;
    }
    return inner != nullptr && segment_of_row_[inner->next] - segment_of_row_[inner->first] < 2;
  }

  void keep_saved(size_t row) {
    for (const PlanOp& op : plan_.table[row].ops) {
      if (op.policy == Policy::kRecompute) continue;
      for (const int32_t j : records(row, op)) {
        for (const int32_t v : graph_.results[j]) out_.keep[v] = 1;
      }
    }
  }

  const StepGraph& graph_;
  const StepChain& chain_;
  const Plan& plan_;
  std::vector<int> region_of_row_;
  std::vector<int32_t> segment_of_row_;
  CutProposal out_;
};

}  // namespace

StepChain::StepChain(const StepGraph& graph, const ValueSpans& spans, const StepRegions& chosen) {
  std::map<std::string, int> types;
  int32_t begin = 0;
  for (size_t i = 0; i <= chosen.positions.size(); ++i) {
    const int32_t end = i < chosen.positions.size() ? chosen.positions[i] : graph.size();
    RegionBuilder builder(graph, spans, chosen.pinned, begin, end,
                          i == 0 ? -1 : chosen.passing[i - 1],
                          i < chosen.positions.size() ? chosen.passing[i] : -1);
    regions.push_back(builder.region());
    BlockType type = builder.take();
    const auto [at, is_new] =
        types.emplace(shape_of(type), static_cast<int>(profile.block_types.size()));
    if (is_new) {
      type.name = "r" + std::to_string(at->second);
      for (ProfileOp& op : type.ops) op.name = type.name + "." + op.name;
      profile.block_types.push_back(std::move(type));
    } else {
      widen(profile.block_types[at->second], type);
    }
    profile.chain.push_back(at->second);
    begin = end;
  }
  add_merge_patterns(profile);
}

bool StepChain::is_plannable() const {
  return std::all_of(profile.block_types.begin(), profile.block_types.end(),
                     [](const BlockType& type) { return type.ops.size() <= most_ops; });
}

CutProposal to_proposal(const StepGraph& graph, const StepChain& chain, const StepRegions& regions,
                        const Plan& plan) {
  return PlanReader(graph, chain, plan).run(regions.pinned);
}

}  // namespace remat::detail
