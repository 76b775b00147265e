// SPDX-License-Identifier: BSD-3-Clause

// Makes plans of schedules, with names and costs; reports the decision for an op, and its readers.
#include "planned_chain.h"

#include <algorithm>
#include <charconv>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "profile_check.h"
#include "simulator.h"

namespace remat::detail {

namespace {

constexpr size_t holdings_listed = 8;

const Profile& validated(const Profile& profile) {
  profile.validate();
  return profile;
}

/// Row of an op, and the op's index in that row. `op` counts from the first op of row `first`.
std::pair<size_t, size_t> row_op(const PlannedChain& chain, size_t first, int op) {
  auto index = static_cast<size_t>(op);
  for (; index >= chain.ops(first).size(); ++first) index -= chain.ops(first).size();
  return {first, index};
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
  const auto [row, index] = row_op(chain, holding.position, op);
  const ProfileOp& named = chain.ops(row)[index];
  out.position = static_cast<int>(row);
  out.region = chain.original_type(row).name;
  if (is_workspace) {
    out.what = "workspace";
    out.slot = named.name;
  } else {
    out.what = holding.kind == Holding::Kind::kGradient ? "gradient" : "tensor";
    out.slot = named.outs[holding.index - block.ops[op].outs.front()].name;
  }
  return out;
}

/// Adds times, peaks and the holdings at the peak, by simulation.
void add_costs(const PlannedChain& chain, const Schedule& schedule, Plan& plan) {
  const Simulation simulation = simulate(chain.model, schedule, true);
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
  const size_t peak_row = row_op(chain, simulation.peak_position, simulation.peak_op).first;
  plan.peak_region = "region " + std::to_string(peak_row) + " '" +
                     chain.original_type(peak_row).name +
                     (simulation.peak_in_backward ? "', backward" : "', forward");
  for (const Holding& holding : simulation.held) {
    if (plan.held.size() == holdings_listed) break;
    plan.held.push_back(describe(chain, holding));
  }
}

}  // namespace

PlannedChain::PlannedChain(const Profile& from, OptionClass options, int exact_ops)
    : original(validated(from)),
      split(split_chain(to_chain(original), split_above)),
      model(split, options, exact_ops) {}

const Merge* PlannedChain::merge_at(size_t first, size_t count) const {
  const auto merge =
      std::find_if(model.merges.begin(), model.merges.end(), [&](const Merge& candidate) {
        return candidate.pattern.size() == count &&
               model.matches(candidate, first, model.length() - 1);
      });
  return merge == model.merges.end() ? nullptr : &*merge;
}

std::span<const ProfileOp> PlannedChain::ops(size_t first, size_t count) const {
  if (count > 1) return original.block_types[merge_at(first, count)->named].ops;
  const std::span<const ProfileOp> all = original_type(first).ops;
  return all.subspan(split.parts[first].first_op, model.block(first).ops.size());
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

namespace {

/// A position, or -1 for any, and a name.
using SlotName = std::pair<int, std::string_view>;

/// Parses "12/attn.qkv" to position 12 of that name, "attn.qkv" to any position.
SlotName parse(std::string_view text) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return {-1, text};
  int position = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + slash, position);
  if (error != std::errc() || end != text.data() + slash) return {-1, text};
  return {position, text.substr(slash + 1)};
}

bool has_name(const ProfileOp& op, std::string_view name) {
  return op.name == name || std::any_of(op.outs.begin(), op.outs.end(),
                                        [&](const ProfileTensor& out) { return out.name == name; });
}

/// Number of runs of a position before its replay: one, plus one for each group that runs it
/// forward-only.
int forward_runs(const Plan& plan, size_t position) {
  const auto row = static_cast<int>(position);
  return 1 + static_cast<int>(std::count_if(
                 plan.groups.begin(), plan.groups.end(),
                 [&](const PlanGroup& group) { return group.first <= row && row < group.next; }));
}

/// Who reads outs of op u: "the backward of attn.av", "attn.drop, which runs again".
std::string readers(const Block& block, std::span<const ProfileOp> names, const OpSet& rerun,
                    size_t u) {
  std::string all;
  const auto add = [&](const std::string& reader) { all += (all.empty() ? "" : ", ") + reader; };
  const std::vector<int>& outs = block.ops[u].outs;
  const auto among_outs = [&](int t) {
    return std::find(outs.begin(), outs.end(), t) != outs.end() && t != block.output;
  };
  for (size_t v = 0; v < block.ops.size(); ++v) {
    const BlockOp& op = block.ops[v];
    if (std::any_of(op.backward_needs.begin(), op.backward_needs.end(), among_outs))
      add("the backward of " + names[v].name);
    if (rerun[v] && std::any_of(op.ins.begin(), op.ins.end(), among_outs))
      add(names[v].name + ", which runs again");
  }
  return all;
}

[[noreturn]] void refuse_plan(const std::string& place, const std::string& expected,
                              const std::string& got) {
  throw std::invalid_argument("[planner] " + place + ": expected " + expected + ", got " + got +
                              ". Give a plan of this planner.");
}

/// The region that begins at a row, with the ops that the plan runs again.
ScheduledRegion region_at(const PlannedChain& chain, const Plan& plan, size_t first) {
  const auto count = static_cast<size_t>(std::max(1, plan.table[first].run_count));
  const std::string place = "table[" + std::to_string(first) + "]";
  const Merge* const merge = count == 1 ? nullptr : chain.merge_at(first, count);
  if (count > 1 && merge == nullptr)
    refuse_plan(place, "regions that the profile lets run as one", std::to_string(count) + " rows");
  ScheduledRegion region{
      first, count, merge == nullptr ? chain.model.chain[first] : merge->type, {}};
  size_t u = 0;
  for (size_t position = first; position < first + count; ++position) {
    const std::vector<PlanOp>& ops = plan.table[position].ops;
    const size_t expected = chain.ops(position).size();
    if (ops.size() != expected)
      refuse_plan(place, std::to_string(expected) + " ops", std::to_string(ops.size()));
    for (const PlanOp& op : ops) region.rerun[u++] = op.policy == Policy::kRecompute;
  }
  return region;
}

SlotReport report_of(const Block& block, std::span<const ProfileOp> names, const OpSet& rerun,
                     size_t u) {
  SlotReport report;
  report.op = names[u].name;
  report.forward_us = names[u].fwd_us;
  const std::vector<char> kept = kept_tensors(block, rerun);
  for (const int t : block.ops[u].outs) {
    report.out_bytes += block.tensors[t].bytes;
    if (kept[t]) report.kept_bytes += block.tensors[t].bytes;
  }
  const std::string who = readers(block, names, rerun, u);
  if (rerun[u]) {
    report.policy = Policy::kRecompute;
    report.reason = "runs again for " + who;
  } else if (report.kept_bytes > 0) {
    report.reason = "kept for " + who;
  } else {
    report.reason = who.empty()
                        ? "costs nothing: neither a backward nor an op that runs again needs it"
                        : "costs nothing: it has no bytes of its own";
  }
  return report;
}

/// Adds the reports on a region's ops that `slot` names.
void add_reports(const PlannedChain& chain, const Plan& plan, const SlotName& slot,
                 const ScheduledRegion& region, std::vector<SlotReport>& reports) {
  const std::span<const ProfileOp> names = chain.ops(region.first, region.count);
  size_t u = 0;
  for (size_t position = region.first; position < region.first + region.count; ++position) {
    const bool here = slot.first < 0 || slot.first == static_cast<int>(position);
    for (const ProfileOp& op : chain.ops(position)) {
      if (here && has_name(op, slot.second)) {
        SlotReport report = report_of(chain.model.types[region.type], names, region.rerun, u);
        report.position = static_cast<int>(position);
        report.region = chain.original_type(position).name;
        report.forward_runs = forward_runs(plan, position) + (region.rerun[u] ? 1 : 0);
        reports.push_back(std::move(report));
      }
      ++u;
    }
  }
}

}  // namespace

std::vector<SlotReport> slot_reports(const PlannedChain& chain, const Plan& plan,
                                     std::string_view slot) {
  const size_t length = chain.model.length();
  if (plan.profile_digest != chain.original.digest())
    refuse_plan("profile", chain.original.digest() + ", the digest of the profile",
                plan.profile_digest);
  if (plan.table.size() != length)
    refuse_plan("table", std::to_string(length) + " rows", std::to_string(plan.table.size()));
  std::vector<SlotReport> reports;
  // A name may itself begin with a number and a slash.
  for (const SlotName& name : {SlotName{-1, slot}, parse(slot)}) {
    for (size_t first = 0; first < length;) {
      const ScheduledRegion region = region_at(chain, plan, first);
      add_reports(chain, plan, name, region, reports);
      first += region.count;
    }
    if (!reports.empty()) return reports;
  }
  throw std::invalid_argument(
      "[planner] slot: expected an op or a tensor of the profile, or POSITION/OP, got \"" +
      std::string(slot) + "\". The table of the plan lists the ops.");
}

}  // namespace remat::detail
