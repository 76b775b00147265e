// SPDX-License-Identifier: BSD-3-Clause

// Turns the records of a region into ops, and its storages into tensors.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "step_chain.h"

namespace remat::detail {

namespace {

/// Rounds to nanoseconds: the planner compares times, and noise must not make types differ.
Ticks rounded_ticks(double us) {
  return to_ticks(std::round(us * 1000) / 1000);
}

}  // namespace

RegionBuilder::RegionBuilder(const StepGraph& graph, const ValueSpans& spans,
                             const std::vector<char>& pinned, int32_t begin, int32_t end,
                             int32_t entering, int32_t leaving)
    : graph_(graph),
      spans_(spans),
      pinned_(pinned),
      entering_(entering),
      leaving_(leaving),
      block_(entering < 0 ? 0 : graph.bytes(entering), begin > 0) {
  region_.begin = begin;
  region_.end = end;
  joined_.resize(end - begin);
  std::iota(joined_.begin(), joined_.end(), begin);
  join_writes();
  join_with_later();
  number_ops();
  for (const std::vector<int32_t>& records : region_.ops) add_op(records);
  first_reader_ = region_.ops.size();
  for (size_t v = 0; v < graph.profile.values.size(); ++v) {
    const int32_t storage = graph.profile.values[v].storage;
    if (!spans.is_inner(storage) || pinned[storage]) continue;
    add_reads(static_cast<int32_t>(v));
  }
  for (const std::vector<int32_t>& records : region_.ops) {
    for (const int32_t j : records) {
      for (const int32_t slot : graph.slots_of_record[j]) add_needs(slot);
    }
  }
  const size_t maker = output_maker();
  lead_gradients(maker);
  set_backward_workspaces(maker);
  block_.link(block_.ops[maker].outs.front());
}

int32_t RegionBuilder::find(int32_t record) {
  while (joined_[record - region_.begin] != record) record = joined_[record - region_.begin];
  return record;
}

void RegionBuilder::join(int32_t a, int32_t b) {
  a = find(a);
  b = find(b);
  joined_[std::min(a, b) - region_.begin] = std::max(a, b);  // an op has its last record's index
}

/// Joins each write with the maker of the value that it replaces, and with the ops that read that
/// value before the write.
void RegionBuilder::join_writes() {
  for (int32_t j = region_.begin; j < region_.end; ++j) {
    for (const StepWrite& write : graph_.profile.records[j].writes) {
      const int32_t maker = graph_.maker(write.before);
      if (!is_inside(maker)) continue;
      join(maker, j);
      for (const int32_t use : graph_.uses[write.before]) {
        if (maker < use && use < j) join(use, j);
      }
    }
  }
}

/// Joins an op with any later op whose result it reads, because ops run in order of last records.
void RegionBuilder::join_with_later() {
  for (bool changed = true; changed;) {
    changed = false;
    for (int32_t j = region_.begin; j < region_.end; ++j) {
      for (const int32_t v : graph_.profile.records[j].reads) {
        const int32_t maker = graph_.maker(v);
        if (!is_inside(maker) || find(maker) <= find(j)) continue;
        join(maker, j);
        changed = true;
      }
    }
  }
}

void RegionBuilder::number_ops() {
  std::map<int32_t, std::vector<int32_t>> by_last;
  for (int32_t j = region_.begin; j < region_.end; ++j) by_last[find(j)].push_back(j);
  op_of_.resize(joined_.size());
  for (auto& [last, records] : by_last) {
    for (const int32_t j : records) op_of_[j - region_.begin] = region_.ops.size();
    region_.ops.push_back(std::move(records));
  }
}

bool RegionBuilder::is_local(int32_t storage) const {
  return spans_.is_inner(storage) && !pinned_[storage] && is_inside(spans_.first[storage]);
}

bool RegionBuilder::is_entering(int32_t value) const {
  return graph_.profile.values[value].storage == entering_ && !is_inside(graph_.maker(value));
}

void RegionBuilder::add_op(const std::vector<int32_t>& records) {
  double forward_us = 0;
  double backward_us = 0;
  int64_t workspace_bytes = 0;
  block_.ops.emplace_back();
  block_.add_out(0);  // Stands for a gradient, see Note [Gradients in the chain].
  for (const int32_t j : records) {
    const StepRecord& record = graph_.profile.records[j];
    forward_us += record.replay_us;
    backward_us += record.backward_us;
    workspace_bytes = std::max(workspace_bytes, record.workspace_bytes);
    for (const int32_t v : record.makes) {
      if (is_local(v)) tensor_of_[v] = block_.add_out(graph_.bytes(v));
    }
  }
  BlockOp& op = block_.ops.back();
  op.fwd = rounded_ticks(forward_us);
  op.bwd = rounded_ticks(backward_us);
  op.fwd_tmp = workspace_bytes;
}

void RegionBuilder::add_reads(int32_t value) {
  const int32_t storage = graph_.profile.values[value].storage;
  const bool enters = is_entering(value);
  if (!enters && !is_local(storage)) return;
  for (const int32_t j : graph_.uses[value]) {
    if (!is_inside(j)) continue;
    const StepRecord& record = graph_.profile.records[j];
    const bool reads = record.reads_data && std::find(record.reads.begin(), record.reads.end(),
                                                      value) != record.reads.end();
    if (!reads) continue;
    const size_t k = op_of_[j - region_.begin];
    if (enters) {
      first_reader_ = std::min(first_reader_, k);
    } else if (op_of_[spans_.first[storage] - region_.begin] != k) {
      add_once(block_.ops[k].ins, tensor_of_.at(storage));
    }
  }
}

void RegionBuilder::add_needs(int32_t slot) {
  const StepSlot& saved = graph_.profile.slots[slot];
  const int32_t storage = graph_.profile.values[saved.value].storage;
  size_t k = op_of_[saved.record - region_.begin];
  if (is_entering(saved.value)) {
    add_once(block_.ops[k].backward_needs, 0);
  } else if (is_local(storage)) {
    // Later writes may have joined the storage's maker into an op after k.
    k = std::max(k, op_of_[spans_.first[storage] - region_.begin]);
    add_once(block_.ops[k].backward_needs, tensor_of_.at(storage));
  }
}

size_t RegionBuilder::output_maker() const {
  return leaving_ < 0 ? block_.ops.size() - 1 : op_of_[spans_.first[leaving_] - region_.begin];
}

/// See Note [Gradients in the chain].
void RegionBuilder::lead_gradients(size_t output_maker) {
  const bool is_first = region_.begin == 0;
  const size_t in = first_reader_ < block_.ops.size() ? first_reader_ : 0;
  BlockOp& maker = block_.ops[output_maker];
  if (leaving_ >= 0) {
    const auto leaving = std::find(maker.outs.begin(), maker.outs.end(), tensor_of_.at(leaving_));
    std::swap(*leaving, maker.outs.front());
  }
  if (!is_first) add_once(block_.ops[in].ins, 0);
  if (in < output_maker) add_once(maker.ins, block_.ops[in].outs.front());
  if (in > output_maker && !is_first) add_once(maker.ins, 0);
  first_reader_ = in;
}

void RegionBuilder::set_backward_workspaces(size_t output_maker) {
  std::vector<int64_t> most(block_.ops.size(), 0);
  for (const StepNode& node : graph_.profile.nodes) {
    if (!is_inside(node.record)) continue;
    int64_t& bytes = most[op_of_[node.record - region_.begin]];
    bytes = std::max({bytes, node.inside_bytes, node.after_bytes});
  }
  const int64_t output = leaving_ < 0 ? 0 : graph_.bytes(leaving_);
  for (size_t k = 0; k < most.size(); ++k) {
    int64_t counted = k >= output_maker ? output : 0;
    if (region_.begin > 0 && k <= std::min(first_reader_, output_maker))
      counted += block_.input_bytes();
    block_.ops[k].bwd_tmp = std::max<int64_t>(0, most[k] - counted);
  }
}

}  // namespace remat::detail
