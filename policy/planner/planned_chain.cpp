// SPDX-License-Identifier: BSD-3-Clause

// Plans from schedules, with their names and costs.
#include "planned_chain.h"

#include <algorithm>
#include <stdexcept>

#include "profile_chain.h"

namespace remat::detail {

namespace {

constexpr size_t holdings_listed = 8;

const Profile& validated(const Profile& profile) {
  profile.validate();
  return profile;
}

/// An op of a run, by its row and its index there.
struct RowOp {
  size_t position = 0;
  size_t op = 0;
};

RowOp row_op(const PlannedChain& chain, size_t first, int op) {
  RowOp at{first, static_cast<size_t>(op)};
  for (; at.op >= chain.ops(at.position).size(); ++at.position)
    at.op -= chain.ops(at.position).size();
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
    out.slot = is_last ? chain.original_type(out.position).output : "in";
    const std::string what = is_last ? "last output" : "region input";
    out.what = holding.kind == Holding::Kind::kChainTensor ? what : "gradient of " + what;
    out.region = chain.original_type(out.position).name;
    return out;
  }
  const Block& block = chain.model.types[holding.type];
  const bool is_workspace = holding.kind == Holding::Kind::kWorkspace;
  const int op = is_workspace ? holding.index : block.tensors[holding.index].producer;
  const RowOp at = row_op(chain, holding.position, op);
  const ProfileOp& named = chain.ops(at.position)[at.op];
  out.position = static_cast<int>(at.position);
  out.region = chain.original_type(at.position).name;
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

PlannedChain::PlannedChain(const Profile& from, OptionClass options, int exact_ops)
    : original(validated(from)),
      split(split_chain(to_chain(original), split_above)),
      model(split.chain, options, exact_ops) {}

std::span<const ProfileOp> PlannedChain::ops(const ScheduledRegion& region) const {
  if (region.count == 1) return ops(region.first);
  for (const Merge& merge : model.merges) {
    if (merge.type == region.type && merge.pattern.size() == region.count &&
        model.matches(merge, region.first, model.length() - 1)) {
      return original.block_types[merge.named].ops;
    }
  }
  throw std::logic_error("[planner] region " + std::to_string(region.first) +
                         ": expected a merged type, got none. Report this.");
}

std::span<const ProfileOp> PlannedChain::ops(size_t position) const {
  const std::span<const ProfileOp> all = original_type(position).ops;
  return all.subspan(split.parts[position].first_op, model.block(position).ops.size());
}

const BlockType& PlannedChain::original_type(size_t position) const {
  return original.block_types[original.chain[split.parts[position].original]];
}

Plan to_plan(const PlannedChain& chain, const Schedule& schedule) {
  Plan plan;
  plan.profile_digest = chain.original.digest();
  for (const ScheduledRegion& region : schedule.regions) {
    size_t u = 0;
    for (size_t position = region.first; position < region.first + region.count; ++position) {
      PlanRow row;
      row.position = static_cast<int>(position);
      row.region = chain.original_type(position).name;
      row.part = chain.split.parts[position].part;
      row.run_first = static_cast<int>(region.first);
      row.run_count = static_cast<int>(region.count);
      for (const ProfileOp& op : chain.ops(position)) {
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
  plan.peak_region = "region " + std::to_string(peak_row) + " '" +
                     chain.original_type(peak_row).name +
                     (simulation.peak_in_backward ? "', backward" : "', forward");
  plan.held.clear();
  for (const Holding& holding : simulation.held) {
    if (plan.held.size() == holdings_listed) break;
    plan.held.push_back(describe(chain, holding));
  }
}

}  // namespace remat::detail
