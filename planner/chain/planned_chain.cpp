// SPDX-License-Identifier: BSD-3-Clause

// Plans from schedules, with their names and costs.
#include "planned_chain.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "profile_check.h"
#include "simulator.h"

namespace remat::detail {

namespace {

/// For regions with at most this many ops, all 2^ops sets of ops to rerun are tried.
constexpr int exact_ops = 18;

const Profile& validated(const Profile& profile) {
  profile.validate();
  return profile;
}

/// The rows from `first` on run as one region. Returns the row that has that region's op `op`.
size_t row_of(const PlannedChain& chain, size_t first, int op) {
  auto index = static_cast<size_t>(op);
  for (; index >= chain.ops(first).size(); ++first) index -= chain.ops(first).size();
  return first;
}

/// Adds times and peaks, by simulation.
void add_costs(const PlannedChain& chain, const Schedule& schedule, Plan& plan) {
  const Simulation simulation = simulate(chain.model, schedule);
  plan.total_time_us = to_us(simulation.time);
  plan.overhead = static_cast<double>(simulation.time) /
                      static_cast<double>(std::max<Ticks>(1, chain.model.ideal_time)) -
                  1;
  if (chain.model.ideal_time == 0) plan.overhead = 0;
  plan.simulated_peak_bytes = simulation.peak;
  const int64_t planned = required_bytes(chain.model, schedule);
  if (planned != simulation.peak) {
    throw std::logic_error("[planner] peak: expected " + std::to_string(planned) +
                           " bytes in the simulation, got " + std::to_string(simulation.peak) +
                           ". Report this.");
  }
  const size_t peak_row = row_of(chain, simulation.peak_position, simulation.peak_op);
  plan.peak_region = "region " + std::to_string(peak_row) + " '" +
                     chain.original_type(peak_row).name +
                     (simulation.peak_in_backward ? "', backward" : "', forward");
}

}  // namespace

PlannedChain::PlannedChain(const Profile& from)
    : original(validated(from)),
      split(split_chain(to_chain(original), split_above)),
      model(split, exact_ops) {}

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
  plan.groups = schedule.groups;
  add_costs(chain, schedule, plan);
  return plan;
}

}  // namespace remat::detail
