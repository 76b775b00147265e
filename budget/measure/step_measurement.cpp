// SPDX-License-Identifier: BSD-3-Clause

// The costs of each step of a function.
#include <remat/budget/step_measurement.h>

#include <c10/util/Exception.h>
#include <c10/util/irange.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include <remat/engine/region.h>
#include <remat/tape/tape.h>

namespace remat {
namespace {

double us(int64_t begin_ns, int64_t end_ns) {
  return static_cast<double>(end_ns - begin_ns) / 1000;
}

/// Most bytes alive after any event from `first` to `last`. `last` may come before `first`, because
/// nodes of several devices run at once.
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

/// The time of replays without that of the records they run, divided by the number of records.
double tape_us(const StepLog& step) {
  if (step.reruns.empty()) return 0;
  double own_us = replays_us(step, [&](const StepLog::Replay& replay) {
    return replay.begin > step.backward.nodes.front().begin &&
           replay.begin < step.backward.nodes.back().end;
  });
  for (const auto& [record, ns] : step.reruns) own_us -= us(0, ns);
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

/// The node that frees the saved tensor; -1 if backward ran no node that may have saved it. Prefers
/// `inner`, the nodes that ran inside others: the node of an op that writes a view and saves its
/// result runs inside the base's node. Nodes made later for the view have higher numbers, but save
/// nothing.
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
  for (const auto i : c10::irange(step.backward.nodes.size())) {
    by_sequence.emplace(step.backward.nodes[i].sequence, static_cast<int32_t>(i));
    for (const uint64_t inner : step.backward.nodes[i].inner)
      inner_by_sequence.emplace(inner, static_cast<int32_t>(i));
  }
  for (const StepLog::Load& load : step.backward.loads)
    by_slot[load.slot] = static_cast<int32_t>(load.node);
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

/// Sets the bytes of each node. Counts only memory made after the forward and outside of replays.
///
/// Note [The end of a node]: after a node has ended, its results are still reduced to the right
/// shape (the gradient of a bias is summed), and only then does autograd free its saved tensors. So
/// a node counts as ended when memory of the forward or a replay is first freed after it.
/// Returns the most bytes alive before the first node.
int64_t add_bytes(const StepLog& step, std::vector<StepNode>& nodes) {
  const auto alive = step.bytes_alive([&](const StepLog::Block& block) {
    return step.is_of_backward(block) && !StepLog::is_of_library(block);
  });
  const std::vector<StepLog::Moment> released = releases(step);
  for (const auto i : c10::irange(nodes.size())) {
    const StepLog::Node& node = step.backward.nodes[i];
    const bool is_last = i + 1 == nodes.size();
    const StepLog::Moment next = is_last ? node.end : step.backward.nodes[i + 1].begin;
    const auto first = std::lower_bound(released.begin(), released.end(), node.end);
    const StepLog::Moment release = first == released.end() ? next : std::min(*first, next);
    nodes[i].before_bytes = alive[node.begin];
    nodes[i].inside_bytes = most(alive, node.begin, release);
    nodes[i].after_bytes = most(alive, release, next);
  }
  for (const StepLog::Load& load : step.backward.loads)
    nodes[load.node].before_bytes = std::max(nodes[load.node].before_bytes, alive[load.at]);
  return most(alive, step.forward_end, step.backward.nodes.front().begin);
}

/// The number of nodes that have begun when the block is freed; -1 if it is freed after backward.
int32_t nodes_begun(const StepLog& step, uint32_t block) {
  if (block == StepLog::kNone) return -1;
  const StepLog::Moment died = step.blocks[block].died;
  if (died == StepLog::kNever || died > step.backward.nodes.back().end) return -1;
  const auto later =
      std::partition_point(step.backward.nodes.begin(), step.backward.nodes.end(),
                           [died](const StepLog::Node& node) { return node.begin < died; });
  return static_cast<int32_t>(later - step.backward.nodes.begin());
}

uint32_t block_of(const StepLog& step, const StepStructure::Result& made) {
  return step.results[step.ops[made.op].first_result + made.result].block;
}

/// Bytes of the region's outside memory on a device.
int64_t bytes_outside(const Region& region, c10::Device device) {
  int64_t bytes = 0;
  for (size_t i = 0; i < region.outside().size(); ++i) {
    const OutsideStorage& outside = region.outside()[i];
    if (counts_on(device, outside.meta().device()))
      bytes += static_cast<int64_t>(outside.whole().bytes_spanned());
  }
  return bytes;
}

StepLog counted_on(StepLog log, c10::Device device) {
  log.count_only(device);
  return log;
}

}  // namespace

std::shared_ptr<const PlannedCuts> StepMeasurement::first_cuts() {
  auto cuts = std::make_shared<PlannedCuts>();
  cuts->rest_bytes = 4096;  // segments of less memory are not worth a cut
  cuts->while_recorded = true;
  return cuts;
}

std::unique_ptr<StepMeasurement> StepMeasurement::of(std::string name, StepLog forward) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      forward.inner_region.empty(), "[profile] '", name,
      "': expected a function without regions of its own, got ", forward.inner_region,
      ": a plan says what all of the step keeps. Take checkpoints out of it, and turn off the "
      "model's own switch for them (gradient_checkpointing, set_grad_checkpointing).");
  const std::shared_ptr<const Region> region =
      forward.region == 0 ? nullptr : find_region(forward.region);
  const auto replayer = region ? region->replayer() : nullptr;
  const Tape* const tape = replayer ? replayer->tape() : nullptr;
  if (!tape || tape->records().empty() || forward.saves.empty()) return nullptr;
  return std::unique_ptr<StepMeasurement>(
      new StepMeasurement(std::move(name), std::move(forward), *region, *tape));
}

StepMeasurement::StepMeasurement(std::string name, StepLog forward, const Region& region,
                                 const Tape& tape)
    : device_(forward.main_device()),
      forward_(counted_on(std::move(forward), device_)),
      structure_(StepStructure::of(forward_, region, tape, std::move(name), device_)),
      leaves_(region.outside().captured()),
      outside_bytes_(bytes_outside(region, device_)),
      sizes_(structure_.results.size()) {
  add_sizes(forward_);
  has_varying_sizes_ = false;
}

std::vector<at::Tensor> StepMeasurement::take_leaves() {
  return std::exchange(leaves_, {});
}

/// Memory that no allocator has reported counts as 0 bytes.
void StepMeasurement::add_sizes(const StepLog& step) {
  for (const auto i : c10::irange(structure_.results.size())) {
    const uint32_t block = block_of(step, structure_.results[i]);
    const int64_t bytes = block == StepLog::kNone ? 0 : step.blocks[block].bytes;
    has_varying_sizes_ = has_varying_sizes_ || bytes != sizes_[i];
    sizes_[i] = std::max(sizes_[i], bytes);
  }
}

bool StepMeasurement::has_same_ops(const StepLog& step) const {
  const auto is_same = [](const StepLog::Op& a, const StepLog::Op& b) { return a.op == b.op; };
  return std::equal(step.ops.begin(), step.ops.end(), forward_.ops.begin(), forward_.ops.end(),
                    is_same) &&
         step.saves.size() == forward_.saves.size() &&
         step.results.size() == forward_.results.size();
}

/// For each node the record of the op that made it; nodes that accumulate gradients take the record
/// of the node before.
std::vector<int32_t> StepMeasurement::records_of_nodes(const StepLog& step) const {
  std::unordered_map<uint64_t, uint32_t> ops;  // by sequence number of a node
  for (const auto i : c10::irange(step.ops.size())) {
    for (uint64_t node = step.ops[i].first_node; node < step.ops[i].end_node; ++node)
      ops.emplace(node, static_cast<uint32_t>(i));
  }
  for (const StepLog::Save& save : step.saves) ops.emplace(save.newest_node, save.op);
  std::vector<int32_t> records;
  auto newest = static_cast<int32_t>(structure_.op_of.size()) - 1;
  for (const StepLog::Node& node : step.backward.nodes) {
    if (const auto op = ops.find(node.sequence); op != ops.end())
      newest = static_cast<int32_t>(structure_.record_of[op->second]);
    records.push_back(newest);
  }
  return records;
}

void StepMeasurement::add_times(const StepLog& step, Sample& sample) const {
  sample.forward_us.assign(structure_.op_of.size(), 0);
  sample.backward_us.assign(structure_.op_of.size(), 0);
  for (const auto i : c10::irange(step.ops.size())) {
    const StepLog::Op& op = step.ops[i];
    sample.forward_us[structure_.record_of[i]] += us(op.begin_ns, op.end_ns);
    if (op.outer != StepLog::kNone)  // the outer op's time includes the inner op's
      sample.forward_us[structure_.record_of[op.outer]] -= us(op.begin_ns, op.end_ns);
  }
  sample.other_us = us(step.ops.front().begin_ns, step.ops.back().end_ns) -
                    std::accumulate(sample.forward_us.begin(), sample.forward_us.end(), 0.0);
  for (const auto i : c10::irange(step.backward.nodes.size())) {
    const StepLog::Node& node = step.backward.nodes[i];
    const bool is_next_here =
        i + 1 < step.backward.nodes.size() && step.backward.nodes[i + 1].thread == node.thread;
    const int64_t end_ns = is_next_here ? step.backward.nodes[i + 1].begin_ns : node.end_ns;
    const StepLog::Moment end = is_next_here ? step.backward.nodes[i + 1].begin : node.end;
    sample.nodes[i].us =
        us(node.begin_ns, end_ns) - replays_us(step, [&](const StepLog::Replay& replay) {
          return replay.thread == node.thread && replay.begin >= node.begin && replay.begin < end;
        });
    sample.backward_us[static_cast<size_t>(sample.nodes[i].record)] += sample.nodes[i].us;
  }
}

bool StepMeasurement::add_step(StepLog& step) {
  step.count_only(device_);
  if (!has_same_ops(step)) return false;
  Sample sample;
  const std::vector<int32_t> records = records_of_nodes(step);
  for (const auto i : c10::irange(step.backward.nodes.size()))
    sample.nodes.push_back({.name = step.backward.nodes[i].name, .record = records[i]});
  sample.node_of_slot = nodes_of_saves(step);
  const auto& slots = sample.node_of_slot;
  if (std::all_of(slots.begin(), slots.end(), [](int32_t node) { return node < 0; })) return false;
  add_times(step, sample);
  sample.gap_bytes = add_bytes(step, sample.nodes);
  for (const StepStructure::Result& made : structure_.results)
    sample.released.push_back(nodes_begun(step, block_of(step, made)));
  sample.reruns = step.reruns;
  sample.tape_us = tape_us(step);
  add_sizes(step);
  samples_.push_back(std::move(sample));
  return true;
}

}  // namespace remat
