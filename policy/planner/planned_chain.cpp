// SPDX-License-Identifier: BSD-3-Clause

// Plans from schedules, and back.
#include "planned_chain.h"

#include <algorithm>
#include <stdexcept>

namespace remat::detail {

namespace {

constexpr size_t holdings_listed = 8;

const Profile& validated(const Profile& profile) {
  profile.validate();
  return profile;
}

/// An op of a run, in the row that it belongs to.
struct RowOp {
  size_t position = 0;
  size_t op = 0;
};

RowOp row_op(const PlannedChain& chain, size_t first, int op) {
  RowOp at{first, static_cast<size_t>(op)};
  for (; at.op >= chain.names(at.position).ops.size(); ++at.position)
    at.op -= chain.names(at.position).ops.size();
  return at;
}

PeakHolding describe(const PlannedChain& chain, const Holding& holding) {
  PeakHolding out;
  out.bytes = holding.bytes;
  out.position = static_cast<int>(holding.position);
  const bool of_chain =
      holding.kind == Holding::Kind::kChainTensor || holding.kind == Holding::Kind::kChainGradient;
  if (of_chain) {
    const bool is_last = holding.position == chain.model.length();
    if (is_last) --out.position;
    out.slot = is_last ? chain.names(out.position).output : "in";
    const std::string what = is_last ? "last output" : "region input";
    out.what = holding.kind == Holding::Kind::kChainTensor ? what : "gradient of " + what;
    out.region = chain.region_name(out.position);
    return out;
  }
  const Block& block = chain.model.types[holding.type];
  const bool is_workspace = holding.kind == Holding::Kind::kWorkspace;
  const int op = is_workspace ? holding.index : block.tensors[holding.index].producer;
  const RowOp at = row_op(chain, holding.position, op);
  const ProfileOp& named = chain.names(at.position).ops[at.op];
  out.position = static_cast<int>(at.position);
  out.region = chain.region_name(at.position);
  if (is_workspace) {
    out.what = "workspace";
    out.slot = named.name;
  } else {
    out.what = holding.kind == Holding::Kind::kGradient ? "gradient" : "tensor";
    out.slot = named.outs[holding.index - block.ops[op].outs.front()].name;
  }
  return out;
}

}  // namespace

const std::string& tensor_name(const BlockType& type, int index) {
  for (const ProfileOp& op : type.ops) {
    if (index <= static_cast<int>(op.outs.size())) return op.outs[index - 1].name;
    index -= static_cast<int>(op.outs.size());
  }
  throw std::logic_error(
      "[planner] tensor: expected an index of the type, got a larger one. Report this.");
}

PlannedChain::PlannedChain(const Profile& from, OptionClass options, int exact_ops)
    : original(validated(from)),
      split(split_regions(original, split_above)),
      model(split.profile, options, exact_ops) {}

const BlockType& PlannedChain::names(const ScheduledRegion& region) const {
  if (region.count == 1) return names(region.first);
  for (const Merge& merge : model.merges) {
    if (merge.type == region.type && merge.pattern.size() == region.count &&
        model.matches(merge, region.first, model.length() - 1)) {
      return split.profile.block_types[merge.named];
    }
  }
  throw std::logic_error("[planner] region " + std::to_string(region.first) +
                         ": expected a merged type, got none. Report this.");
}

const std::string& PlannedChain::region_name(size_t position) const {
  return original.block_types[original.chain[split.original[position]]].name;
}

Plan to_plan(const PlannedChain& chain, const Schedule& schedule) {
  Plan plan;
  plan.profile_digest = chain.original.digest();
  for (const ScheduledRegion& region : schedule.regions) {
    size_t u = 0;
    for (size_t position = region.first; position < region.first + region.count; ++position) {
      PlanRow row;
      row.position = static_cast<int>(position);
      row.region = chain.region_name(position);
      row.part = chain.split.part[position];
      row.run_first = static_cast<int>(region.first);
      row.run_count = static_cast<int>(region.count);
      for (const ProfileOp& op : chain.names(position).ops) {
        row.ops.push_back({op.name, region.rerun[u++] ? Policy::kRecompute : Policy::kSave});
      }
      plan.table.push_back(std::move(row));
    }
  }
  for (const ScheduledGroup& group : schedule.groups) {
    plan.groups.push_back({static_cast<int>(group.first), static_cast<int>(group.next)});
  }
  return plan;
}

void add_costs(const PlannedChain& chain, const Schedule& schedule, Plan& plan) {
  const Simulation simulation = simulate(chain.model, schedule, true);
  plan.total_time_us = to_us(simulation.time);
  plan.overhead = static_cast<double>(simulation.time) /
                      static_cast<double>(std::max<Ticks>(1, chain.model.ideal_time)) -
                  1;
  if (chain.model.ideal_time == 0) plan.overhead = 0;
  plan.predicted_peak_bytes = required_bytes(chain.model, schedule);
  plan.simulated_peak_bytes = simulation.peak;
  const size_t peak_row = row_op(chain, simulation.peak_position, simulation.peak_op).position;
  plan.peak_region = "region " + std::to_string(peak_row) + " '" + chain.region_name(peak_row) +
                     (simulation.peak_in_backward ? "', backward" : "', forward");
  plan.held.clear();
  for (const Holding& holding : simulation.held) {
    if (plan.held.size() == holdings_listed) break;
    plan.held.push_back(describe(chain, holding));
  }
}

}  // namespace remat::detail
