// SPDX-License-Identifier: BSD-3-Clause

// Medians of the logs of several steps.
#include "step_costs.h"

#include <c10/util/irange.h>

#include <algorithm>
#include <map>
#include <numeric>
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

/// Most bytes alive after any event from `first` to `last`. `last` may be smaller, since nodes of
/// several devices run at once.
int64_t most(const std::vector<int64_t>& alive, StepLog::Moment first, StepLog::Moment last) {
  return *std::max_element(alive.begin() + first, alive.begin() + std::max(first, last) + 1);
}

/// CPU time of the replays for which `counts` returns true.
template <class Counts>
double replays_us(const StepLog& step, Counts&& counts) {
  double sum = 0;
  for (const StepLog::Replay& replay : step.replays) {
    if (counts(replay)) sum += us(replay.begin_ns, replay.end_ns);
  }
  return sum;
}

/// The time of replays besides their records, divided by the number of records.
double tape_us(const StepLog& step) {
  if (step.reruns.empty()) return 0;
  double own_us = replays_us(step, [&](const StepLog::Replay& replay) {
    return replay.begin > step.nodes.front().begin && replay.begin < step.nodes.back().end;
  });
  for (const StepLog::Rerun& rerun : step.reruns) own_us -= us(0, rerun.ns);
  return std::max(0.0, own_us / static_cast<double>(step.reruns.size()));
}

using NodesBySequence = std::unordered_map<uint64_t, int32_t>;

/// The newest of `nodes` that may have saved the tensor; -1 if there is none.
int32_t newest_of(const StepLog::Save& save, const NodesBySequence& nodes) {
  for (uint64_t sequence = save.newest_node + 1; sequence-- > save.first_node;) {
    if (const auto node = nodes.find(sequence); node != nodes.end()) return node->second;
  }
  return -1;
}

/// The node that frees the saved tensor; -1 if backward ran none that may have saved it. `inner`:
/// an op that writes a view in place has its node inside that of the base, and saves its result
/// when the view has newer nodes, which save nothing.
int32_t node_of(const StepLog::Save& save, const NodesBySequence& nodes,
                const NodesBySequence& inner) {
  const int32_t node = newest_of(save, inner);
  return node >= 0 ? node : newest_of(save, nodes);
}

/// For each save the node that frees it; -1 if unknown.
std::vector<int32_t> nodes_of_saves(const StepLog& step) {
  NodesBySequence by_sequence;
  NodesBySequence inner_by_sequence;
  std::map<StepLog::RegionSlot, int32_t> by_slot;
  for (const auto i : c10::irange(step.nodes.size()))
    by_sequence.emplace(step.nodes[i].sequence, static_cast<int32_t>(i));
  for (const StepLog::InnerNode& inner : step.inner_nodes)
    inner_by_sequence.emplace(inner.sequence, static_cast<int32_t>(inner.outer));
  for (const StepLog::Load& load : step.loads) by_slot[load.slot] = static_cast<int32_t>(load.node);
  std::vector<int32_t> nodes;
  for (const StepLog::Save& save : step.saves) {
    const auto known = by_slot.find(save.slot);
    nodes.push_back(known == by_slot.end() ? node_of(save, by_sequence, inner_by_sequence)
                                           : known->second);
  }
  return nodes;
}

/// The moments at which memory made outside of backward is freed.
std::vector<StepLog::Moment> releases(const StepLog& step) {
  std::vector<StepLog::Moment> moments;
  for (const StepLog::Block& block : step.blocks) {
    if (block.died != StepLog::kNever && !step.is_of_backward(block)) moments.push_back(block.died);
  }
  std::sort(moments.begin(), moments.end());
  return moments;
}

/// Adds the bytes that were made outside of replays since the forward, node by node.
///
/// Note [The end of a node]: after a node has ended, its results are still reduced to the right
/// shape (the gradient of a bias is summed), and only then autograd frees what the node saved. That
/// moment is taken to be the first free, after the node, of memory made in the forward or a replay.
///
/// Returns the most bytes alive before the first node.
int64_t add_bytes(const StepLog& step, std::vector<StepNode>& nodes) {
  const auto alive = step.bytes_alive([&](const StepLog::Block& block) {
    return step.is_of_backward(block) && !StepLog::is_of_library(block);
  });
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
  for (const StepLog::Load& load : step.loads)
    nodes[load.node].before_bytes = std::max(nodes[load.node].before_bytes, alive[load.at]);
  return most(alive, step.forward_end, step.nodes.front().begin);
}

/// The number of nodes that have begun when the block is freed; -1 if backward has ended by then.
int32_t nodes_begun(const StepLog& step, uint32_t block) {
  if (block == StepLog::kNone) return -1;
  const StepLog::Moment died = step.blocks[block].died;
  if (died == StepLog::kNever || died > step.nodes.back().end) return -1;
  const auto later =
      std::partition_point(step.nodes.begin(), step.nodes.end(),
                           [died](const StepLog::Node& node) { return node.begin < died; });
  return static_cast<int32_t>(later - step.nodes.begin());
}

bool is_held(const StepProfile& profile, const StepValue& value) {
  return value.held_until == static_cast<int32_t>(profile.records.size());
}

uint32_t block_of(const StepLog& step, const ResultOfOp& made) {
  return step.results[step.ops[made.op].first_result + made.result].block;
}

}  // namespace

StepCosts::StepCosts(const StepLog& structure, const RecordsOfOps& records,
                     std::vector<ResultOfOp> results)
    : structure_(structure),
      records_(records),
      results_(std::move(results)),
      sizes_(results_.size()) {
  add_sizes(structure);
  has_varying_sizes_ = false;
}

/// Memory that no allocator has reported counts as 0 bytes.
void StepCosts::add_sizes(const StepLog& step) {
  for (const auto i : c10::irange(results_.size())) {
    const uint32_t block = block_of(step, results_[i]);
    const int64_t bytes = block == StepLog::kNone ? 0 : step.blocks[block].bytes;
    has_varying_sizes_ = has_varying_sizes_ || bytes != sizes_[i];
    sizes_[i] = std::max(sizes_[i], bytes);
  }
}

bool StepCosts::has_same_ops(const StepLog& step) const {
  const auto is_same = [](const StepLog::Op& a, const StepLog::Op& b) { return a.op == b.op; };
  return std::equal(step.ops.begin(), step.ops.end(), structure_.ops.begin(), structure_.ops.end(),
                    is_same) &&
         step.saves.size() == structure_.saves.size() &&
         step.results.size() == structure_.results.size();
}

/// For each node the record of the op that made it; nodes that accumulate gradients take that of
/// the node before.
std::vector<int32_t> StepCosts::records_of_nodes(const StepLog& step) const {
  std::unordered_map<uint64_t, uint32_t> ops;  // by sequence number of a node
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
  for (const auto i : c10::irange(step.ops.size())) {
    const StepLog::Op& op = step.ops[i];
    sample.forward_us[records_.record_of[i]] += us(op.begin_ns, op.end_ns);
    if (op.outer != StepLog::kNone)  // its time includes this one
      sample.forward_us[records_.record_of[op.outer]] -= us(op.begin_ns, op.end_ns);
  }
  sample.other_us = us(step.ops.front().begin_ns, step.ops.back().end_ns) -
                    std::accumulate(sample.forward_us.begin(), sample.forward_us.end(), 0.0);
  for (const auto i : c10::irange(step.nodes.size())) {
    const StepLog::Node& node = step.nodes[i];
    const bool is_next_here = i + 1 < step.nodes.size() && step.nodes[i + 1].thread == node.thread;
    const int64_t end_ns = is_next_here ? step.nodes[i + 1].begin_ns : node.end_ns;
    const StepLog::Moment end = is_next_here ? step.nodes[i + 1].begin : node.end;
    sample.nodes[i].us =
        us(node.begin_ns, end_ns) - replays_us(step, [&](const StepLog::Replay& replay) {
          return replay.thread == node.thread && replay.begin >= node.begin && replay.begin < end;
        });
    sample.backward_us[static_cast<size_t>(sample.nodes[i].record)] += sample.nodes[i].us;
  }
}

bool StepCosts::add(const StepLog& step) {
  if (!has_same_ops(step)) return false;
  Sample sample;
  const std::vector<int32_t> records = records_of_nodes(step);
  for (const auto i : c10::irange(step.nodes.size()))
    sample.nodes.push_back({.name = step.nodes[i].name, .record = records[i]});
  sample.node_of_slot = nodes_of_saves(step);
  const auto& slots = sample.node_of_slot;
  if (std::all_of(slots.begin(), slots.end(), [](int32_t node) { return node < 0; })) return false;
  add_times(step, sample);
  sample.gap_bytes = add_bytes(step, sample.nodes);
  for (const ResultOfOp& made : results_)
    sample.released.push_back(nodes_begun(step, block_of(step, made)));
  sample.reruns = step.reruns;
  sample.tape_us = tape_us(step);
  add_sizes(step);
  samples_.push_back(std::move(sample));
  return true;
}

/// Steps differ by gradients that are there already, and by sizes that depend on data.
void StepCosts::fill_nodes(StepProfile& profile) const {
  const Sample& last = samples_.back();
  profile.nodes = last.nodes;
  for (const auto i : c10::irange(profile.slots.size())) {
    if (!profile.slots[i].is_dropped()) profile.slots[i].node = last.node_of_slot[i];
  }
  for (const Sample& sample : samples_) {
    if (sample.nodes.size() != profile.nodes.size()) continue;
    for (const auto i : c10::irange(profile.nodes.size())) {
      StepNode& node = profile.nodes[i];
      node.before_bytes = std::max(node.before_bytes, sample.nodes[i].before_bytes);
      node.inside_bytes = std::max(node.inside_bytes, sample.nodes[i].inside_bytes);
      node.after_bytes = std::max(node.after_bytes, sample.nodes[i].after_bytes);
    }
  }
}

/// If a value that is held at the forward's end grows, so do the bytes alive then.
void StepCosts::fill_sizes(StepProfile& profile) const {
  for (const auto i : c10::irange(results_.size())) {
    StepValue& value = profile.values[results_[i].value];
    const int64_t more = std::max<int64_t>(0, sizes_[i] - value.bytes);
    value.bytes += more;
    if (is_held(profile, value)) profile.end_bytes += more;
  }
}

/// A step with other nodes only tells what is freed before they begin.
int32_t StepCosts::latest_release(size_t result) const {
  int32_t latest = 0;
  for (const Sample& sample : samples_) {
    const bool is_known = sample.nodes.size() == samples_.back().nodes.size();
    const int32_t released = sample.released[result];
    if (released < 0 || (released > 0 && !is_known)) return -1;
    latest = std::max(latest, released);
  }
  return latest;
}

/// The cuts of a measured step keep some values longer than the program does, so those have no
/// release.
void StepCosts::fill_releases(StepProfile& profile) const {
  for (const auto i : c10::irange(results_.size())) {
    StepValue& value = profile.values[results_[i].value];
    if (is_held(profile, value)) value.released = latest_release(i);
  }
  for (const Sample& sample : samples_)
    profile.gap_bytes = std::max(profile.gap_bytes, sample.gap_bytes);
}

/// The first of several steps is cold and is not timed.
c10::ArrayRef<StepCosts::Sample> StepCosts::timed() const {
  const c10::ArrayRef<Sample> all(samples_);
  return all.size() > 2 ? all.slice(1) : all;
}

/// For records that no replay has run, scales the forward's time by the ratio of the others.
void StepCosts::fill_replay_times(StepProfile& profile) const {
  std::unordered_map<uint64_t, std::vector<double>> reruns;
  std::vector<double> tape;
  for (const Sample& sample : timed()) {
    tape.push_back(sample.tape_us);
    for (const StepLog::Rerun& rerun : sample.reruns)
      reruns[profile.records[rerun.record].kind].push_back(us(0, rerun.ns));
  }
  std::unordered_map<uint64_t, double> by_kind;
  for (auto& [kind, times] : reruns) by_kind[kind] = median(std::move(times));
  double forward_us = 0;
  double replay_us = 0;
  for (StepRecord& record : profile.records) {
    const auto known = by_kind.find(record.kind);
    record.replay_us = known == by_kind.end() ? -1 : known->second;
    if (record.replay_us < 0) continue;
    forward_us += record.forward_us;
    replay_us += record.replay_us;
  }
  const double tape_us = median(std::move(tape));
  const double share = forward_us > 0 ? replay_us / forward_us : 1;
  for (StepRecord& record : profile.records) {
    if (record.replay_us < 0) record.replay_us = share * record.forward_us;
    record.replay_us += tape_us;
  }
}

void StepCosts::fill(StepProfile& profile) const {
  if (samples_.empty()) return;
  fill_nodes(profile);
  fill_sizes(profile);
  fill_releases(profile);
  for (StepValue& value : profile.values) {  // a write does not change the size of the storage
    const StepValue& first = profile.values[static_cast<size_t>(value.storage)];
    if (value.maker < 0 || first.maker < 0) continue;
    value.bytes = first.bytes;
    value.released = first.released;
  }
  std::unordered_map<uint64_t, std::vector<size_t>> equal;
  for (const auto i : c10::irange(profile.records.size()))
    equal[profile.records[i].kind].push_back(i);
  std::vector<double> other;
  for (const Sample& sample : timed()) other.push_back(sample.other_us);
  profile.other_us = std::max(0.0, median(other));
  for (const auto& [kind, records] : equal) {
    std::vector<double> forward;
    std::vector<double> backward;
    for (const Sample& sample : timed()) {
      for (const size_t record : records) {
        forward.push_back(sample.forward_us[record]);
        backward.push_back(sample.backward_us[record]);
      }
    }
    const double forward_us = median(std::move(forward));
    const double backward_us = median(std::move(backward));
    for (const size_t record : records) {
      profile.records[record].forward_us = forward_us;
      profile.records[record].backward_us = backward_us;
    }
  }
  fill_replay_times(profile);
}

}  // namespace remat
