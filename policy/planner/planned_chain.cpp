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

/// Index of each op's out by name.
int tensor_index(const BlockType& type, const std::string& name) {
  int index = 1;
  for (const ProfileOp& op : type.ops) {
    for (const ProfileTensor& out : op.outs) {
      if (out.name == name) return index;
      ++index;
    }
  }
  return -1;
}

const std::string& tensor_name(const BlockType& type, int index) {
  for (const ProfileOp& op : type.ops) {
    if (index <= static_cast<int>(op.outs.size())) return op.outs[index - 1].name;
    index -= static_cast<int>(op.outs.size());
  }
  throw std::logic_error(
      "[planner] tensor: expected an index of the type, got a larger one. Report this.");
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

PlannedChain::PlannedChain(const Profile& from, OptionClass options)
    : original(validated(from)),
      split(split_regions(original, split_above)),
      model(split.profile, options) {}

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
    const BlockType& run_type = chain.names(region);
    const Block& block = chain.model.types[region.type];
    size_t u = 0;
    for (size_t position = region.first; position < region.first + region.count; ++position) {
      PlanRow row;
      row.position = static_cast<int>(position);
      row.region = chain.region_name(position);
      row.part = chain.split.part[position];
      row.run_first = static_cast<int>(region.first);
      row.run_count = static_cast<int>(region.count);
      for (const ProfileOp& op : chain.names(position).ops) {
        Policy policy = region.rerun[u] ? Policy::kRecompute : Policy::kSave;
        for (const int t : block.ops[u].outs) {
          if (std::find(region.offloaded.begin(), region.offloaded.end(), t) ==
              region.offloaded.end())
            continue;
          policy = Policy::kOffload;
          row.offloaded.push_back({tensor_name(run_type, t), block.tensors[t].bytes});
        }
        row.ops.push_back({op.name, policy});
        ++u;
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

Schedule to_schedule(const PlannedChain& chain, const Plan& plan, const PlanFault& fail) {
  const size_t length = chain.model.length();
  if (plan.table.size() != length) {
    fail("table", std::to_string(length) + " rows, one per region",
         std::to_string(plan.table.size()));
  }
  Schedule schedule;
  for (size_t first = 0; first < length;) {
    const std::string place = "table[" + std::to_string(first) + "]";
    ScheduledRegion region;
    region.first = first;
    region.count = static_cast<size_t>(std::max(0, plan.table[first].run_count));
    region.type = chain.model.chain[first];
    if (region.count != 1) {
      const auto& merges = chain.model.merges;
      const auto merge = std::find_if(merges.begin(), merges.end(), [&](const Merge& candidate) {
        return candidate.pattern.size() == region.count &&
               chain.model.matches(candidate, first, length - 1);
      });
      if (merge == merges.end())
        fail(place, "regions that the profile lets run as one",
             std::to_string(region.count) + " rows");
      region.type = merge->type;
    }
    const Block& block = chain.model.types[region.type];
    const BlockType& run_type = chain.names(region);
    OpSet offloaded_ops;
    size_t u = 0;
    for (size_t position = first; position < first + region.count; ++position) {
      const PlanRow& row = plan.table[position];
      const std::string row_place = "table[" + std::to_string(position) + "]";
      if (row.position != static_cast<int>(position) || row.region != chain.region_name(position) ||
          row.part != chain.split.part[position]) {
        fail(row_place,
             "region " + std::to_string(position) + " '" + chain.region_name(position) +
                 "', part " + std::to_string(chain.split.part[position]),
             "region " + std::to_string(row.position) + " '" + row.region + "', part " +
                 std::to_string(row.part));
      }
      if (row.run_first != static_cast<int>(first) ||
          row.run_count != static_cast<int>(region.count)) {
        fail(row_place + ".run",
             "[" + std::to_string(first) + ", " + std::to_string(region.count) + "]",
             "[" + std::to_string(row.run_first) + ", " + std::to_string(row.run_count) + "]");
      }
      const std::vector<ProfileOp>& ops = chain.names(position).ops;
      if (row.ops.size() != ops.size()) {
        fail(row_place + ".ops", std::to_string(ops.size()) + " ops",
             std::to_string(row.ops.size()));
      }
      for (size_t i = 0; i < ops.size(); ++i, ++u) {
        if (row.ops[i].name != ops[i].name)
          fail(row_place + ".ops", "op '" + ops[i].name + "'", "'" + row.ops[i].name + "'");
        region.rerun[u] = row.ops[i].policy == Policy::kRecompute;
        offloaded_ops[u] = row.ops[i].policy == Policy::kOffload;
      }
      for (const ProfileTensor& tensor : row.offloaded) {
        const int t = tensor_index(run_type, tensor.name);
        if (t < 0 || block.tensors[t].bytes != tensor.bytes) {
          fail(row_place + ".offload", "a tensor of the region with its bytes",
               "'" + tensor.name + "', " + std::to_string(tensor.bytes));
        }
        region.offloaded.push_back(t);
      }
    }
    if (without_dead_ops(block, region.rerun) != region.rerun) {
      fail(place + ".ops",
           "RECOMPUTE only of ops whose results backward or an op that runs again needs", "others");
    }
    std::sort(region.offloaded.begin(), region.offloaded.end());
    const std::vector<char> kept = kept_tensors(block, region.rerun);
    OpSet moved_ops;
    for (size_t i = 0; i < region.offloaded.size(); ++i) {
      const int t = region.offloaded[i];
      if (!kept[t] || (i > 0 && region.offloaded[i - 1] == t)) {
        fail(place + ".offload", "each kept tensor at most once",
             "'" + tensor_name(run_type, t) + "'");
      }
      moved_ops.set(block.tensors[t].producer);
    }
    if (moved_ops != offloaded_ops)
      fail(place + ".offload", "tensors of the OFFLOAD ops", "others");
    if (moved_ops.any() && chain.model.link_ticks_per_byte == 0)
      fail(place, "no OFFLOAD, for the profile has no link", "OFFLOAD");
    first += region.count;
    schedule.regions.push_back(std::move(region));
  }
  for (size_t i = 0; i < plan.groups.size(); ++i) {
    const PlanGroup& group = plan.groups[i];
    if (group.first < 0 || group.next <= group.first || group.next >= static_cast<int>(length)) {
      fail("groups[" + std::to_string(i) + "]", "0 <= first < next < " + std::to_string(length),
           "[" + std::to_string(group.first) + ", " + std::to_string(group.next) + "]");
    }
    schedule.groups.push_back({static_cast<size_t>(group.first), static_cast<size_t>(group.next)});
  }
  try {
    events_of(schedule, length);
  } catch (const std::invalid_argument& error) {
    fail("groups", "groups that nest around whole runs", error.what());
  }
  return schedule;
}

}  // namespace remat::detail
