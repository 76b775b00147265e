// SPDX-License-Identifier: BSD-3-Clause

// From the logs of steps to medians.
#include "step_costs.h"

#include <c10/util/irange.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace remat {
namespace {

double us(int64_t begin_ns, int64_t end_ns) {
  return static_cast<double>(end_ns - begin_ns) / 1000;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Most bytes that are alive after an event from `first` to `last`.
/// Nodes of several devices run at once.
int64_t most(const std::vector<int64_t>& alive, StepLog::Moment first, StepLog::Moment last) {
  return *std::max_element(alive.begin() + first, alive.begin() + std::max(first, last) + 1);
}

/// CPU time of the replays that began from `first` to `last`.
double replays_us(const StepLog& step, StepLog::Moment first, StepLog::Moment last) {
  double sum = 0;
  for (const StepLog::Replay& replay : step.replays) {
    if (replay.begin >= first && replay.begin < last) sum += us(replay.begin_ns, replay.end_ns);
  }
  return sum;
}

/// The node that frees what was saved; -1 if backward ran none that may have saved it.
int32_t node_of(const StepLog::Save& save, const std::unordered_map<uint64_t, int32_t>& nodes) {
  for (uint64_t sequence = save.newest_node + 1; sequence-- > save.first_node;) {
    if (const auto node = nodes.find(sequence); node != nodes.end()) return node->second;
  }
  return -1;
}

/// When memory dies that others than backward have made.
std::vector<StepLog::Moment> releases(const StepLog& step) {
  std::vector<StepLog::Moment> moments;
  for (const StepLog::Block& block : step.blocks) {
    if (block.died != StepLog::kNever && !step.is_of_backward(block)) moments.push_back(block.died);
  }
  std::sort(moments.begin(), moments.end());
  return moments;
}

/// Bytes that were made outside of replays since the forward, node by node.
///
/// Note [The end of a node]: what a node returns is given its shape (a bias' gradient is summed)
/// when it has ended, and only then autograd frees what it saved. The first memory of the forward
/// or of a replay that dies after a node is taken for that moment.
void add_bytes(const StepLog& step, std::vector<StepNode>& nodes) {
  const auto alive =
      step.bytes_alive([&](const StepLog::Block& block) { return step.is_of_backward(block); });
  const std::vector<StepLog::Moment> released = releases(step);
  for (const auto i : c10::irange(nodes.size())) {
    const StepLog::Node& node = step.nodes[i];
    const bool is_last = i + 1 == nodes.size();
    const StepLog::Moment next = is_last ? node.end : step.nodes[i + 1].begin;
    const auto first = std::lower_bound(released.begin(), released.end(), node.end);
    const StepLog::Moment release = first == released.end() ? next : std::min(*first, next);
    nodes[i].before_bytes = alive[node.begin];
    nodes[i].inside_bytes = most(alive, node.begin, release);
    nodes[i].after_bytes = most(alive, release, next);
  }
}

}  // namespace

StepCosts::StepCosts(const StepLog& structure, const RecordsOfOps& records)
    : structure_(structure), records_(records) {}

bool StepCosts::has_same_ops(const StepLog& step) const {
  const auto is_same = [](const StepLog::Op& a, const StepLog::Op& b) { return a.op == b.op; };
  return std::equal(step.ops.begin(), step.ops.end(), structure_.ops.begin(), structure_.ops.end(),
                    is_same) &&
         step.saves.size() == structure_.saves.size();
}

/// Of each node the record of the op that made it; of those that accumulate gradients that of the
/// node before.
std::vector<int32_t> StepCosts::records_of_nodes(const StepLog& step) const {
  std::unordered_map<uint64_t, uint32_t> ops;  // by the number of a node
  for (const auto i : c10::irange(step.ops.size())) {
    for (uint64_t node = step.ops[i].first_node; node < step.ops[i].end_node; ++node)
      ops.emplace(node, static_cast<uint32_t>(i));
  }
  for (const StepLog::Save& save : step.saves) ops.emplace(save.newest_node, save.op);
  std::vector<int32_t> records;
  auto newest = static_cast<int32_t>(records_.op_of.size()) - 1;
  for (const StepLog::Node& node : step.nodes) {
    if (const auto op = ops.find(node.sequence); op != ops.end())
      newest = static_cast<int32_t>(records_.record_of[op->second]);
    records.push_back(newest);
  }
  return records;
}

void StepCosts::add_times(const StepLog& step, Sample& sample) const {
  sample.forward_us.assign(records_.op_of.size(), 0);
  sample.backward_us.assign(records_.op_of.size(), 0);
  for (const auto i : c10::irange(step.ops.size()))
    sample.forward_us[records_.record_of[i]] += us(step.ops[i].begin_ns, step.ops[i].end_ns);
  for (const auto i : c10::irange(step.nodes.size())) {
    const bool is_last = i + 1 == step.nodes.size();
    const StepLog::Node& node = step.nodes[i];
    const int64_t end_ns = is_last ? node.end_ns : step.nodes[i + 1].begin_ns;
    const StepLog::Moment end = is_last ? node.end : step.nodes[i + 1].begin;
    sample.nodes[i].us = us(node.begin_ns, end_ns) - replays_us(step, node.begin, end);
    sample.backward_us[static_cast<size_t>(sample.nodes[i].record)] += sample.nodes[i].us;
  }
}

bool StepCosts::add(const StepLog& step) {
  if (!has_same_ops(step)) return false;
  Sample sample;
  std::unordered_map<uint64_t, int32_t> by_sequence;
  const std::vector<int32_t> records = records_of_nodes(step);
  for (const auto i : c10::irange(step.nodes.size())) {
    by_sequence.emplace(step.nodes[i].sequence, static_cast<int32_t>(i));
    sample.nodes.push_back({.name = step.nodes[i].name, .record = records[i]});
  }
  for (const StepLog::InnerNode& inner : step.inner_nodes)
    by_sequence.emplace(inner.sequence, static_cast<int32_t>(inner.outer));
  for (const StepLog::Save& save : step.saves)
    sample.node_of_slot.push_back(node_of(save, by_sequence));
  add_times(step, sample);
  add_bytes(step, sample.nodes);
  samples_.push_back(std::move(sample));
  return true;
}

void StepCosts::fill(StepProfile& profile) const {
  if (samples_.empty()) return;
  const Sample& last = samples_.back();
  profile.nodes = last.nodes;
  for (const auto i : c10::irange(profile.slots.size()))
    profile.slots[i].node = last.node_of_slot[i];
  std::unordered_map<uint64_t, std::vector<size_t>> equal;
  for (const auto i : c10::irange(profile.records.size()))
    equal[profile.records[i].kind].push_back(i);
  for (const auto& [kind, records] : equal) {
    std::vector<double> forward;
    std::vector<double> backward;
    for (const Sample& sample : samples_) {
      for (const size_t record : records) {
        forward.push_back(sample.forward_us[record]);
        backward.push_back(sample.backward_us[record]);
      }
    }
    for (const size_t record : records) {
      profile.records[record].forward_us = median(forward);
      profile.records[record].backward_us = median(backward);
    }
  }
}

}  // namespace remat
