// SPDX-License-Identifier: BSD-3-Clause

// The events of forward, replays and backward.
#include "step_simulator.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace remat::detail {

namespace {

std::vector<int64_t> bytes_of(const StepGraph& graph) {
  std::vector<int64_t> bytes;
  for (const StepValue& value : graph.profile.values) bytes.push_back(value.bytes);
  return bytes;
}

}  // namespace

StepSimulator::StepSimulator(const StepGraph& graph, const std::vector<int32_t>& positions,
                             const StepGroups& groups, const ReplayCosts& costs,
                             const OffloadTerms& offload)
    : graph_(graph),
      units_(graph, positions, groups),
      needs_(graph, units_),
      moves_(graph, units_, offload),
      bytes_(bytes_of(graph)),
      timeline_(offload, bytes_),
      costs_(costs),
      top_index_(units_.size()),
      last_holder_(graph.profile.values.size(), -1),
      is_put_(graph.profile.values.size(), 0) {
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
  moves_.choose(needs_.kept_at_root(), keep);
  out_.peak_bytes = out_.forward_peak_bytes = out_.peak_fixed_bytes = 0;
  out_.peak = {};
  out_.rerun_us = 0;
  out_.replays = 0;
  out_.runs.assign(graph_.profile.records.size(), 0);
  for (TopUnit& top : out_.top_units) top.peak_bytes = 0;
  done_.assign(units_.size(), 0);
  replayed_.assign(graph_.profile.values.size(), {});
  freed_.assign(graph_.profile.nodes.size() + 1, 0);
  start_copies();
  run_forward();
  start_backward();
  wait_for_backward();
  let_go();
  run_backward();
  if (!moves_.put().empty()) out_.waited_us = timeline_.run(copy_steps_).waited_us;
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

void StepSimulator::start_copies() {
  out_.offloaded_bytes = needed_ = 0;
  out_.waited_us = 0;
  for (const int32_t v : std::exchange(put_, moves_.put())) is_put_[v] = 0;
  for (const int32_t v : put_) is_put_[v] = 1;
  copy_steps_.clear();
  if (put_.empty()) return;
  needed_until_.assign(graph_.profile.nodes.size() + 1, 0);
  dropped_by_.assign(graph_.profile.nodes.size() + 1, {});
  pass_forward();
}

/// Records when values are put, and when the program drops them.
void StepSimulator::pass_forward() {
  const std::vector<StepRecord>& records = graph_.profile.records;
  std::vector<std::vector<int32_t>> alone(records.size() + 1);
  for (const int32_t v : put_) alone[graph_.profile.values[v].held_until + 1].push_back(v);
  auto next = put_.begin();
  const double other_us = graph_.profile.other_us / std::max<double>(1, graph_.size());
  for (int32_t j = 0; j < graph_.size(); ++j) {
    for (const int32_t v : alone[j]) copy_step(CopyStep::Kind::kAlone, v);
    compute(records[j].forward_us + other_us);
    for (; next != put_.end() && graph_.maker(*next) == j; ++next)
      copy_step(CopyStep::Kind::kPut, *next);
  }
  for (const int32_t v : alone.back()) copy_step(CopyStep::Kind::kAlone, v);
}

void StepSimulator::copy_step(CopyStep::Kind kind, int32_t value) {
  copy_steps_.push_back({kind, value, 0});
}

void StepSimulator::compute(double us) {
  if (put_.empty()) return;
  if (copy_steps_.empty() || copy_steps_.back().kind != CopyStep::Kind::kCompute)
    copy_steps_.push_back({CopyStep::Kind::kCompute, -1, 0});
  copy_steps_.back().us += us;
}

/// The record from which on a kept value takes memory besides what the program holds: outside
/// memory is copied at once, other memory before it is written, and until then the program holds
/// the storage.
int32_t StepSimulator::own_memory_from(int32_t value) const {
  if (graph_.is_outside(value)) return graph_.maker(value);
  const int32_t written = graph_.overwritten_by[value];
  return written == StepGraph::never ? graph_.profile.values[value].held_until + 1 : written;
}

void StepSimulator::start_backward() {
  out_.kept_bytes = 0;
  note_storages();
  for (const int32_t v : released_values_) last_holder_[v] = graph_.profile.values[v].released - 1;
  for (const int32_t copied : needs_.copied_from_outside()) out_.kept_bytes += graph_.bytes(copied);
  for (const HeldValue& kept : needs_.kept_at_root()) {
    if (graph_.is_programs(kept.value)) {
      last_holder_[kept.value] = std::max(last_holder_[kept.value], kept.until);
      continue;
    }
    if (moves_.leaves(kept.value)) {
      needed_ += graph_.bytes(kept.value);
      needed_until_[kept.until] += graph_.bytes(kept.value);
      continue;
    }
    out_.kept_bytes += graph_.bytes(kept.value);
    freed_[memory_until(kept)] += graph_.bytes(kept.value);
  }
  now_ = graph_.profile.end_bytes + out_.kept_bytes;
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

/// Note [Memory that kept values share]: what replays give for a slot lies in the memory that the
/// forward saved, while that is alive: remat itself has it if it keeps the storage's newest value.
/// Older ones that are kept, or that a group gives, are copies, of which slots then hold that
/// memory, too.
int32_t StepSimulator::memory_until(const HeldValue& kept) const {
  const bool is_newest = graph_.overwritten_by[kept.value] == StepGraph::never;
  if (!is_newest || graph_.is_outside(kept.value)) return kept.until;
  const int32_t storage = graph_.profile.values[kept.value].storage;
  const bool is_only_value = storage == kept.value;
  return is_only_value ? kept.until : storage_until_[storage];
}

/// The moment counts as that of a record after the last.
void StepSimulator::wait_for_backward() {
  const int64_t bytes = now_ + moves_.leaving_bytes(needed_) + graph_.profile.gap_bytes;
  if (bytes <= out_.peak_bytes) return;
  out_.peak_bytes = bytes;
  out_.peak_fixed_bytes = graph_.profile.end_bytes + graph_.profile.gap_bytes;
  out_.peak = {StepPhase::kForward, -1, graph_.size(), -1};
}

/// Memory held by the program and by remat is freed by the last of them.
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
    end_node(q);
    reach(node.after_bytes, {StepPhase::kNode, -1, node.record, node_}, top);
  }
}

void StepSimulator::end_node(size_t node) {
  now_ -= freed_[node];
  if (put_.empty()) return;
  compute(graph_.profile.nodes[node].us);
  needed_ -= needed_until_[node];
  for (const int32_t v : dropped_by_[node]) copy_step(CopyStep::Kind::kDrop, v);
}

void StepSimulator::reach(int64_t bytes, StepMoment moment, int32_t top_unit) {
  int64_t& top_peak = out_.top_units[top_unit].peak_bytes;
  const int64_t all = now_ + moves_.moving_bytes(needed_, out_.offloaded_bytes - needed_) + bytes;
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
  if (!put_.empty()) ask_for_moved(unit);
  for (const int32_t j : needs.runs) rerun_record(unit, j);
  for (const HeldValue& held : needs.held) freed_[held.until] += graph_.bytes(held.value);
  out_.rerun_us += costs_.unit_us;
  compute(costs_.unit_us);
  ++out_.replays;
}

/// A replay gets all given values before its first op runs. Those that slots hold are freed with
/// the slots, the others after they have been read.
void StepSimulator::ask_for_moved(int32_t unit) {
  const UnitNeeds& needs = needs_.of(unit);
  std::vector<int32_t> asked;
  std::copy_if(needs.given.begin(), needs.given.end(), std::back_inserter(asked),
               [&](int32_t v) { return is_put(v); });
  std::sort(asked.begin(), asked.end());
  for (const HeldValue& held : needs.given_held) {
    if (!is_put(held.value)) continue;
    replayed(unit, held.value).held = true;
    dropped_by_[held.until].push_back(held.value);
    if (moves_.leaves(held.value)) freed_[held.until] += graph_.bytes(held.value);
  }
  for (const int32_t v : asked) {
    copy_step(CopyStep::Kind::kAsk, v);
    Replayed& of = replayed(unit, v);
    of.given = false;
    of.asked = true;
    of.present = true;
    if (moves_.leaves(v)) now_ += graph_.bytes(v);
  }
  if (asked.empty()) return;
  reach(graph_.profile.nodes[node_].before_bytes,
        {StepPhase::kReplay, unit, units_[unit].begin, node_}, top_index_[unit]);
}

/// Memory from outside that the step overwrites is restored before the unit runs.
void StepSimulator::read_again(int32_t unit, int32_t value, int32_t record) {
  Replayed& of = replayed(unit, value);
  of.last = record;
  if (!of.present && graph_.profile.values[value].unpacked_bytes > 0) make(unit, value);
}

void StepSimulator::rerun_record(int32_t unit, int32_t j) {
  const StepRecord& record = graph_.profile.records[j];
  ++out_.runs[j];
  out_.rerun_us += record.replay_us + costs_.record_us;
  compute(record.replay_us + costs_.record_us);
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

/// Reuses the memory if the old value is no longer needed.
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
  if (of.asked) copy_step(CopyStep::Kind::kDrop, value);
  if (of.asked && !moves_.leaves(value)) return;
  now_ -= graph_.replay_bytes(value);
}

}  // namespace remat::detail
