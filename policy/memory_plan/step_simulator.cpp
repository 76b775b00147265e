// SPDX-License-Identifier: BSD-3-Clause

// The events of forward, replays and backward.
#include "step_simulator.h"

#include <algorithm>
#include <numeric>

namespace remat::detail {

StepSimulator::StepSimulator(const StepGraph& graph, const std::vector<int32_t>& positions,
                             const StepGroups& groups, const ReplayCosts& costs)
    : graph_(graph),
      units_(graph, positions, groups),
      needs_(graph, units_),
      costs_(costs),
      top_index_(units_.size()),
      last_holder_(graph.profile.values.size(), -1) {
  std::vector<int32_t> index(units_.size(), -1);
  for (int32_t s = 0; s < units_.segments(); ++s) {
    const int32_t top = units_.top_of(s);
    if (index[top] < 0) {
      index[top] = static_cast<int32_t>(out_.top_units.size());
      out_.top_units.push_back({units_[top].first_segment, units_[top].end_segment, 0});
    }
  }
  for (int32_t u = 0; u < units_.size(); ++u) top_index_[u] = index[units_.top_of(u)];
  for (size_t i = 0; i < last_holder_.size(); ++i) {
    const auto v = static_cast<int32_t>(i);
    if (graph.is_programs(v) && graph.profile.values[v].released >= 0)
      released_values_.push_back(v);
  }
}

const StepSimulation& StepSimulator::run(std::vector<char>& keep, MissingValues missing) {
  needs_.walk(keep, missing);
  out_.peak_bytes = out_.forward_peak_bytes = out_.peak_fixed_bytes = 0;
  out_.peak = {};
  out_.rerun_us = 0;
  out_.replays = 0;
  out_.runs.assign(graph_.profile.records.size(), 0);
  for (TopUnit& top : out_.top_units) top.peak_bytes = 0;
  done_.assign(units_.size(), 0);
  replayed_.assign(graph_.profile.values.size(), {});
  freed_.assign(graph_.profile.nodes.size() + 1, 0);
  run_forward();
  start_backward();
  wait_for_backward();
  let_go();
  run_backward();
  return out_;
}

void StepSimulator::run_forward() {
  const int32_t n = graph_.size();
  std::vector<int64_t> more(n + 1, 0);
  for (const HeldValue& kept : needs_.kept_at_root()) {
    const int32_t from = own_memory_from(kept.value);
    if (from < n) more[from] += graph_.bytes(kept.value);
  }
  int64_t kept_bytes = 0;
  for (int32_t j = 0; j < n; ++j) {
    kept_bytes += more[j];
    const int64_t bytes = graph_.profile.records[j].forward_bytes + kept_bytes;
    if (bytes > out_.forward_peak_bytes) {
      out_.forward_peak_bytes = out_.peak_bytes = bytes;
      out_.peak_fixed_bytes = graph_.profile.records[j].forward_bytes;
      out_.peak = {StepPhase::kForward, -1, j, -1};
    }
  }
}

/// From which record on a kept value takes memory beside what the program holds: memory from
/// outside is copied at once, other memory before it is written; until then the program holds the
/// storage.
int32_t StepSimulator::own_memory_from(int32_t value) const {
  if (graph_.is_outside(value)) return graph_.maker(value);
  const int32_t written = graph_.overwritten_by[value];
  return written == StepGraph::never ? graph_.profile.values[value].held_until + 1 : written;
}

void StepSimulator::start_backward() {
  out_.kept_bytes = 0;
  for (const int32_t v : released_values_) last_holder_[v] = graph_.profile.values[v].released - 1;
  for (const int32_t copied : needs_.copied_from_outside()) out_.kept_bytes += graph_.bytes(copied);
  for (const HeldValue& kept : needs_.kept_at_root()) {
    if (graph_.is_programs(kept.value)) {
      last_holder_[kept.value] = std::max(last_holder_[kept.value], kept.until);
      continue;
    }
    out_.kept_bytes += graph_.bytes(kept.value);
    freed_[memory_until(kept)] += graph_.bytes(kept.value);
  }
  now_ = graph_.profile.end_bytes + out_.kept_bytes;
}

/// Note [Memory that kept values share]: what replays give for a slot lies in the memory that the
/// forward saved, while that is alive: remat itself has it if it keeps the storage's newest value.
/// Older ones that are kept, or that a group gives, are copies, of which slots then hold that
/// memory, too.
int32_t StepSimulator::memory_until(const HeldValue& kept) const {
  int32_t until = kept.until;
  const bool is_newest = graph_.overwritten_by[kept.value] == StepGraph::never;
  if (!is_newest || graph_.is_outside(kept.value)) return until;
  const auto storage_of = [&](int32_t value) { return graph_.profile.values[value].storage; };
  if (storage_of(kept.value) == kept.value) return until;  // the only value of its storage
  const auto share = [&](const std::vector<HeldValue>& others) {
    for (const HeldValue& other : others) {
      if (storage_of(other.value) == storage_of(kept.value)) until = std::max(until, other.until);
    }
  };
  share(needs_.kept_at_root());
  for (int32_t group = units_.segments(); group < units_.size(); ++group)
    share(needs_.of(group).held);
  return until;
}

/// The moment is that of a record after the last.
void StepSimulator::wait_for_backward() {
  const int64_t bytes = now_ + graph_.profile.gap_bytes;
  if (bytes <= out_.peak_bytes) return;
  out_.peak_bytes = bytes;
  out_.peak_fixed_bytes = graph_.profile.end_bytes + graph_.profile.gap_bytes;
  out_.peak = {StepPhase::kForward, -1, graph_.size(), -1};
}

/// What the program and remat hold goes with the last of them.
void StepSimulator::let_go() {
  for (const int32_t v : released_values_) {
    if (last_holder_[v] < 0) {
      now_ -= graph_.bytes(v);
    } else {
      freed_[last_holder_[v]] += graph_.bytes(v);
    }
  }
}

void StepSimulator::run_backward() {
  const StepProfile& profile = graph_.profile;
  for (size_t q = 0; q < profile.nodes.size(); ++q) {
    node_ = static_cast<int32_t>(q);
    const StepNode& node = profile.nodes[q];
    for (const int32_t slot : graph_.slots_of_node[q])
      replay(units_.segment_of(profile.slots[slot].record));
    const int32_t top = top_index_[units_.segment_of(node.record)];
    reach(node.inside_bytes, {StepPhase::kNode, -1, node.record, node_}, top);
    now_ -= freed_[q];
    reach(node.after_bytes, {StepPhase::kNode, -1, node.record, node_}, top);
  }
}

void StepSimulator::reach(int64_t bytes, StepMoment moment, int32_t top_unit) {
  int64_t& top_peak = out_.top_units[top_unit].peak_bytes;
  top_peak = std::max(top_peak, now_ + bytes);
  if (now_ + bytes <= out_.peak_bytes) return;
  out_.peak_bytes = now_ + bytes;
  out_.peak_fixed_bytes = bytes;
  out_.peak = moment;
}

void StepSimulator::replay(int32_t unit) {
  if (done_[unit]) return;
  done_[unit] = 1;
  for (const int32_t group : needs_.of(unit).given_groups) replay(group);
  run_again(unit);
}

StepSimulator::Replayed& StepSimulator::replayed(int32_t unit, int32_t value) {
  Replayed& of = replayed_[value];
  if (of.unit != unit) of = {unit, -1, false, false, false};
  return of;
}

void StepSimulator::run_again(int32_t unit) {
  const UnitNeeds& needs = needs_.of(unit);
  for (const int32_t j : needs.runs) {
    const StepRecord& record = graph_.profile.records[j];
    if (!record.reads_data) continue;
    for (const int32_t v : record.reads) read_again(unit, v, j);
  }
  for (const HeldValue& held : needs.held) replayed(unit, held.value).held = true;
  for (const int32_t v : needs.given) replayed(unit, v).given = true;
  for (const int32_t j : needs.runs) rerun_record(unit, j);
  for (const HeldValue& held : needs.held) freed_[held.until] += graph_.bytes(held.value);
  out_.rerun_us += costs_.unit_us;
  ++out_.replays;
}

/// Memory from outside that the step overwrites is put together before the unit runs.
void StepSimulator::read_again(int32_t unit, int32_t value, int32_t record) {
  Replayed& of = replayed(unit, value);
  of.last = record;
  if (!of.present && graph_.profile.values[value].unpacked_bytes > 0) make(unit, value);
}

void StepSimulator::rerun_record(int32_t unit, int32_t j) {
  const StepRecord& record = graph_.profile.records[j];
  ++out_.runs[j];
  out_.rerun_us += record.replay_us + costs_.record_us;
  for (const StepWrite& write : record.writes) write_again(unit, j, write);
  for (const int32_t v : record.makes) make(unit, v);
  reach(record.workspace_bytes + graph_.profile.nodes[node_].before_bytes,
        {StepPhase::kReplay, unit, j, node_}, top_index_[unit]);
  for (const int32_t v : graph_.results[j]) {
    if (!is_needed_after(unit, v, j)) drop(unit, v);
  }
  if (!record.reads_data) return;
  for (const int32_t v : record.reads) {
    if (!is_needed_after(unit, v, j)) drop(unit, v);
  }
}

/// The memory goes on if nobody needs it any more as it was.
void StepSimulator::write_again(int32_t unit, int32_t record, const StepWrite& write) {
  Replayed& before = replayed(unit, write.before);
  if (before.present && !is_needed_after(unit, write.before, record)) {
    before.present = false;
    replayed(unit, write.after).present = true;
    return;
  }
  make(unit, write.after);
}

bool StepSimulator::is_needed_after(int32_t unit, int32_t value, int32_t record) const {
  const Replayed& of = replayed_[value];
  return of.unit == unit && !of.given && (of.held || of.last > record);
}

void StepSimulator::make(int32_t unit, int32_t value) {
  replayed(unit, value).present = true;
  now_ += graph_.replay_bytes(value);
}

void StepSimulator::drop(int32_t unit, int32_t value) {
  Replayed& of = replayed(unit, value);
  if (!of.present) return;
  of.present = false;
  now_ -= graph_.replay_bytes(value);
}

}  // namespace remat::detail
