// SPDX-License-Identifier: BSD-3-Clause

// Simulates forward, replays and backward, event by event.
#include "step_simulator.h"

#include <algorithm>
#include <iterator>

namespace remat::detail {

StepSimulator::StepSimulator(const StepGraph& graph, const std::vector<int32_t>& positions,
                             const StepGroups& groups, const OffloadTerms& offload)
    : graph_(graph),
      units_(graph, positions, groups),
      needs_(graph, units_),
      moves_(graph, units_, offload) {
  for (int32_t s = 0; s < units_.segments(); ++s) {
    const StepUnit& top = units_[units_[s].top];
    if (top.first_segment == s) out_.top_units.push_back({s, top.end_segment, 0});
  }
  for (size_t i = 0; i < graph.profile.values.size(); ++i) {
    const auto v = static_cast<int32_t>(i);
    if (graph.is_programs(v) && graph.profile.values[v].released >= 0)
      released_values_.push_back(v);
  }
}

const StepSimulation& StepSimulator::run(std::vector<char>& keep, MissingValues missing) {
  needs_.walk(keep, missing);
  moves_.begin(needs_.kept_at_root(), keep);
  out_.peak_bytes = out_.forward_peak_bytes = out_.peak_fixed_bytes = 0;
  out_.peak = {};
  out_.rerun_us = 0;
  out_.offloaded_bytes = 0;
  out_.replays = 0;
  out_.runs.assign(graph_.profile.records.size(), 0);
  for (TopUnit& top : out_.top_units) top.peak_bytes = 0;
  done_.assign(units_.size(), 0);
  replayed_.assign(graph_.profile.values.size(), {});
  freed_.assign(graph_.profile.nodes.size() + 1, 0);
  run_forward();
  const std::vector<int32_t> last_holder = start_backward();
  wait_for_backward();
  let_go(last_holder);
  run_backward();
  out_.waited_us = moves_.waited_us();
  return out_;
}

void StepSimulator::run_forward() {
  const int32_t n = graph_.size();
  std::vector<int64_t> more(n + 1, 0);
  std::vector<int64_t> sent(n + 1, 0);
  for (const HeldValue& kept : needs_.kept_at_root()) {
    const int32_t from = own_memory_from(kept.value);
    if (from < n) more[from] += graph_.bytes(kept.value);
    if (moves_.leaves(kept.value)) sent[moves_.sent_at(kept.value) + 1] += graph_.bytes(kept.value);
  }
  int64_t kept_bytes = 0;
  for (int32_t j = 0; j < n; ++j) {
    out_.offloaded_bytes += sent[j];
    kept_bytes += more[j] - sent[j];
    const int64_t bytes = graph_.profile.records[j].forward_bytes + kept_bytes +
                          moves_.leaving_bytes(out_.offloaded_bytes);
    if (bytes > out_.forward_peak_bytes) {
      out_.forward_peak_bytes = out_.peak_bytes = bytes;
      out_.peak_fixed_bytes = graph_.profile.records[j].forward_bytes;
      out_.peak = {StepPhase::kForward, -1, j, -1};
    }
  }
  out_.offloaded_bytes += sent[n];
}

/// The record from which on a kept value takes memory besides the program's. A value in outside
/// memory is copied when it is made. Any other value counts from when its storage is overwritten,
/// or the program lets the storage go.
int32_t StepSimulator::own_memory_from(int32_t value) const {
  if (graph_.is_outside(value)) return graph_.maker(value);
  const int32_t written = graph_.overwritten_by[value];
  return written == StepGraph::never ? graph_.profile.values[value].held_until + 1 : written;
}

std::vector<int32_t> StepSimulator::start_backward() {
  out_.kept_bytes = 0;
  note_storages();
  std::vector<int32_t> last_holder(graph_.profile.values.size(), -1);
  for (const int32_t v : released_values_) last_holder[v] = graph_.profile.values[v].released - 1;
  for (const int32_t copied : needs_.copied_from_outside()) out_.kept_bytes += graph_.bytes(copied);
  for (const HeldValue& kept : needs_.kept_at_root()) {
    if (graph_.is_programs(kept.value)) {
      last_holder[kept.value] = std::max(last_holder[kept.value], kept.until);
      continue;
    }
    if (moves_.leaves(kept.value)) {
      moves_.need(kept);
      continue;
    }
    out_.kept_bytes += graph_.bytes(kept.value);
    freed_[memory_until(kept)] += graph_.bytes(kept.value);
  }
  now_ = graph_.profile.end_bytes + out_.kept_bytes;
  return last_holder;
}

void StepSimulator::note_storages() {
  storage_until_.assign(graph_.profile.values.size(), -1);
  const auto note = [&](const std::vector<HeldValue>& held) {
    for (const HeldValue& value : held) {
      int32_t& until = storage_until_[graph_.profile.values[value.value].storage];
      until = std::max(until, value.until);
    }
  };
  note(needs_.kept_at_root());
  for (int32_t group = units_.segments(); group < units_.size(); ++group)
    note(needs_.of(group).held);
}

/// Note [Memory that kept values share]: while the memory that the forward saved is alive, a replay
/// fills slots with it. If the storage's newest value is kept, it keeps that memory alive. Older
/// kept values of the storage, and values that a group makes, are copies; but the slots that get
/// such a copy hold the saved memory, too, so it lives until the last of these slots is freed.
int32_t StepSimulator::memory_until(const HeldValue& kept) const {
  const bool is_newest = graph_.overwritten_by[kept.value] == StepGraph::never;
  if (!is_newest || graph_.is_outside(kept.value)) return kept.until;
  const int32_t storage = graph_.profile.values[kept.value].storage;
  const bool is_only_value = storage == kept.value;
  return is_only_value ? kept.until : storage_until_[storage];
}

/// Counts memory between forward and backward, as for one more record after the last.
void StepSimulator::wait_for_backward() {
  const int64_t bytes =
      now_ + moves_.leaving_bytes(moves_.needed_bytes()) + graph_.profile.gap_bytes;
  if (bytes <= out_.peak_bytes) return;
  out_.peak_bytes = bytes;
  out_.peak_fixed_bytes = graph_.profile.end_bytes + graph_.profile.gap_bytes;
  out_.peak = {StepPhase::kForward, -1, graph_.size(), -1};
}

/// Memory that both the program and remat hold is freed when the last of the two lets go.
void StepSimulator::let_go(const std::vector<int32_t>& last_holder) {
  for (const int32_t v : released_values_) {
    if (last_holder[v] < 0) {
      now_ -= graph_.bytes(v);
    } else {
      freed_[last_holder[v]] += graph_.bytes(v);
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
    const int32_t segment = units_.segment_of(node.record);
    reach(node.inside_bytes, {StepPhase::kNode, -1, node.record, node_}, segment);
    now_ -= freed_[q];
    moves_.end_node(q);
    reach(node.after_bytes, {StepPhase::kNode, -1, node.record, node_}, segment);
  }
}

void StepSimulator::reach(int64_t bytes, StepMoment moment, int32_t unit) {
  int64_t& top_peak = out_.top_units[units_[unit].top_index].peak_bytes;
  const int64_t all = now_ + moves_.moving_bytes(out_.offloaded_bytes) + bytes;
  top_peak = std::max(top_peak, all);
  if (all <= out_.peak_bytes) return;
  out_.peak_bytes = all;
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
  if (of.unit != unit) of = {.unit = unit};
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
  if (moves_.any_put()) get_moved(unit);
  for (const int32_t j : needs.runs) rerun_record(unit, j);
  for (const HeldValue& held : needs.held) freed_[held.until] += graph_.bytes(held.value);
  ++out_.replays;
}

/// A replay gets all offloaded values that it needs before its first op runs. Values that slots
/// hold are freed with the slots, the others after they have been read.
void StepSimulator::get_moved(int32_t unit) {
  const UnitNeeds& needs = needs_.of(unit);
  std::vector<int32_t> moved;
  std::copy_if(needs.given.begin(), needs.given.end(), std::back_inserter(moved),
               [&](int32_t v) { return moves_.is_put(v); });
  std::sort(moved.begin(), moved.end());
  for (const HeldValue& held : needs.given_held) {
    if (!moves_.is_put(held.value)) continue;
    replayed(unit, held.value).held = true;
    moves_.drop_with(held);
    if (moves_.leaves(held.value)) freed_[held.until] += graph_.bytes(held.value);
  }
  for (const int32_t v : moved) {
    moves_.get(v);
    Replayed& of = replayed(unit, v);
    of.given = false;
    of.got = true;
    of.present = true;
    if (moves_.leaves(v)) now_ += graph_.bytes(v);
  }
  if (moved.empty()) return;
  reach(graph_.profile.nodes[node_].before_bytes,
        {StepPhase::kReplay, unit, units_[unit].begin, node_}, unit);
}

/// Notes a read. Outside memory that the step overwrites is restored before the unit runs.
void StepSimulator::read_again(int32_t unit, int32_t value, int32_t record) {
  Replayed& of = replayed(unit, value);
  of.last = record;
  if (!of.present && graph_.profile.values[value].unpacked_bytes > 0) make(unit, value);
}

void StepSimulator::rerun_record(int32_t unit, int32_t j) {
  const StepRecord& record = graph_.profile.records[j];
  ++out_.runs[j];
  out_.rerun_us += record.replay_us;
  moves_.compute(record.replay_us);
  for (const StepWrite& write : record.writes) write_again(unit, j, write);
  for (const int32_t v : record.makes) make(unit, v);
  reach(record.workspace_bytes + graph_.profile.nodes[node_].before_bytes,
        {StepPhase::kReplay, unit, j, node_}, unit);
  for (const int32_t v : graph_.results[j]) {
    if (!is_needed_after(unit, v, j)) drop(unit, v);
  }
  if (!record.reads_data) return;
  for (const int32_t v : record.reads) {
    if (!is_needed_after(unit, v, j)) drop(unit, v);
  }
}

/// Gives the new value the old value's memory if the old value is no longer needed.
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
  if (of.got) moves_.drop(value);
  if (of.got && !moves_.leaves(value)) return;
  now_ -= graph_.replay_bytes(value);
}

}  // namespace remat::detail
