// SPDX-License-Identifier: BSD-3-Clause

// Finds a slot, and says what needs it.
#include "slot_reports.h"

#include <algorithm>
#include <charconv>
#include <stdexcept>

namespace remat::detail {

namespace {

/// Parses "12/attn.qkv" to position 12 of that name, "attn.qkv" to any position.
struct SlotName {
  int position = -1;
  std::string_view name;
};

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

/// Number of runs of each position before its replay: one, plus one for each group that runs it
/// forward-only.
std::vector<int> forward_runs(const Plan& plan, size_t length) {
  std::vector<int> runs(length, 1);
  for (const PlanGroup& group : plan.groups) {
    for (int i = group.first; i < group.next; ++i) ++runs[i];
  }
  return runs;
}

std::string join(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

/// Who reads outs of op u: "the backward of attn.av", "attn.drop, which runs again".
std::string readers(const Block& block, std::span<const ProfileOp> names, const OpSet& rerun,
                    size_t u) {
  std::vector<std::string> who;
  const std::vector<int>& outs = block.ops[u].outs;
  const auto among_outs = [&](int t) {
    return std::find(outs.begin(), outs.end(), t) != outs.end() && t != block.output;
  };
  for (size_t v = 0; v < block.ops.size(); ++v) {
    const BlockOp& op = block.ops[v];
    if (std::any_of(op.backward_needs.begin(), op.backward_needs.end(), among_outs)) {
      who.push_back("the backward of " + names[v].name);
    }
    if (rerun[v] && std::any_of(op.ins.begin(), op.ins.end(), among_outs))
      who.push_back(names[v].name + ", which runs again");
  }
  return join(who);
}

class Reporter {
 public:
  Reporter(const PlannedChain& chain, const Plan& plan, const SlotName& slot)
      : chain_(chain), slot_(slot), runs_(forward_runs(plan, chain.model.length())) {}

  void add(const ScheduledRegion& region) {
    const Block& block = chain_.model.types[region.type];
    const std::span<const ProfileOp> names = chain_.ops(region);
    const std::vector<char> kept = kept_tensors(block, region.rerun);
    size_t u = 0;
    for (size_t position = region.first; position < region.first + region.count; ++position) {
      const bool here = slot_.position < 0 || slot_.position == static_cast<int>(position);
      for (const ProfileOp& op : chain_.ops(position)) {
        if (here && has_name(op, slot_.name))
          reports.push_back(report(region, position, op, u, block, names, kept));
        ++u;
      }
    }
  }

  std::vector<SlotReport> reports;

 private:
  SlotReport report(const ScheduledRegion& region, size_t position, const ProfileOp& op, size_t u,
                    const Block& block, std::span<const ProfileOp> names,
                    const std::vector<char>& kept) const {
    SlotReport report;
    report.position = static_cast<int>(position);
    report.region = chain_.original_type(position).name;
    report.op = op.name;
    report.forward_us = op.fwd_us;
    report.forward_runs = runs_[position] + (region.rerun[u] ? 1 : 0);
    for (const int t : block.ops[u].outs) {
      report.out_bytes += block.tensors[t].bytes;
      if (kept[t]) report.kept_bytes += block.tensors[t].bytes;
    }
    const std::string who = readers(block, names, region.rerun, u);
    if (region.rerun[u]) {
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

  const PlannedChain& chain_;
  SlotName slot_;
  std::vector<int> runs_;
};

}  // namespace

std::vector<SlotReport> slot_reports(const PlannedChain& chain, const Plan& plan,
                                     std::string_view slot) {
  const PlanFault fail = [](const std::string& place, const std::string& expected,
                            const std::string& got) {
    throw std::invalid_argument("[planner] " + place + ": expected " + expected + ", got " + got +
                                ". Give a plan of this planner.");
  };
  const Schedule schedule = to_schedule(chain, plan, fail);
  // A name may itself begin with a number and a slash.
  for (const SlotName& name : {SlotName{-1, slot}, parse(slot)}) {
    Reporter reporter(chain, plan, name);
    for (const ScheduledRegion& region : schedule.regions) reporter.add(region);
    if (!reporter.reports.empty()) return std::move(reporter.reports);
  }
  throw std::invalid_argument(
      "[planner] slot: expected an op or a tensor of the profile, or POSITION/OP, got \"" +
      std::string(slot) + "\". The table of the plan lists the ops.");
}

}  // namespace remat::detail
