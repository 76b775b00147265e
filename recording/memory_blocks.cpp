// SPDX-License-Identifier: BSD-3-Clause

#include <remat/recording/memory_blocks.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <remat/recording/replay_links.h>

#include "running_spans.h"
#include "storage_origins.h"

namespace remat {
namespace {

constexpr std::string_view kAccumulateGrad = "torch::autograd::AccumulateGrad";

/// Goes through memory events, ops and saves in order of time, and tracks the blocks that are
/// alive.
class BlockFinder {
 public:
  explicit BlockFinder(const Recording& recording)
      : recording_(recording),
        replays_(recording.replays),
        nodes_(recording.nodes),
        uses_in_nodes_(recording.nodes),
        nesting_(recording),
        forwards_(forward_ops(recording)),
        makers_(ops_of_nodes(recording)) {
    for (size_t i = 0; i < recording.ops.size(); ++i)
      ops_.emplace(std::pair(recording.ops[i].thread, recording.ops[i].number), i);
  }

  std::vector<MemoryBlock> run() {
    for (size_t event = 0; event < recording_.memory.size(); ++event) {
      look_at_saves_until(recording_.memory[event].time_ns);
      look_at_ops_until(recording_.memory[event].time_ns);
      look_at(event);
    }
    look_at_saves_until(kEnd);
    look_at_ops_until(kEnd);
    const std::unordered_map<uint64_t, TimeNs> wanted = first_wanted();
    for (MemoryBlock& block : blocks_) {
      if (block.kind == BlockKind::kForward && block.call != 0 && waits_for_backward(block, wanted))
        block.kind = BlockKind::kKept;
    }
    return std::move(blocks_);
  }

 private:
  static constexpr TimeNs kEnd = std::numeric_limits<TimeNs>::max();

  void look_at(size_t event) {
    const auto& memory = recording_.memory[event];
    if (const auto known = alive_.find(memory.address); known != alive_.end()) {
      blocks_[known->second].end = event;
      alive_.erase(known);
    }
    if (memory.bytes <= 0) return;
    alive_.emplace(memory.address, blocks_.size());
    blocks_.push_back(block_of(event));
  }

  MemoryBlock block_of(size_t event) {
    const auto& memory = recording_.memory[event];
    MemoryBlock block;
    block.begin = event;
    block.bytes = memory.bytes;
    block.device = memory.device;
    block.node = nodes_.innermost_at(memory.thread, memory.time_ns);
    const bool replays = !replays_.at(memory.thread, memory.time_ns).empty();
    const auto op = ops_.find({memory.thread, memory.op});
    if (op != ops_.end()) block.op = op->second;
    if (block.op != MemoryBlock::kNone) {
      const auto& maker = recording_.ops[block.op];
      block.region = maker.region;
      block.call = maker.call;
      block.kind = kind_of(maker.phase);
      // Between nodes, the engine sums and casts the results of the node that ran last, so the
      // memory counts as that node's.
      if (block.kind == BlockKind::kBackward && block.node == MemoryBlock::kNone)
        block.node = nodes_.last_at(memory.thread, memory.time_ns);
    } else if (replays) {
      block.kind = BlockKind::kReplayed;
    } else if (block.node != MemoryBlock::kNone) {
      block.kind = BlockKind::kBackward;
    }
    block.line = line_of(block);
    return block;
  }

  static BlockKind kind_of(OpPhase phase) {
    constexpr BlockKind kKinds[] = {BlockKind::kOutside, BlockKind::kForward, BlockKind::kReplayed,
                                    BlockKind::kBackward};  // by phase
    return kKinds[static_cast<size_t>(phase)];
  }

  StringId line_of(const MemoryBlock& block) const {
    if (block.op != MemoryBlock::kNone) {
      if (const StringId line = line_of_op(block.op); line != 0) return line;
    }
    if (block.node != MemoryBlock::kNone && makers_[block.node] != kNoOp)
      return line_of_op(makers_[block.node]);
    return 0;
  }

  /// The source line of the op or, if it has none, of the forward op that it replays. If the op
  /// replays none either, the line of its caller, and so on.
  StringId line_of_op(size_t op) const {
    for (; op != kNoOp; op = nesting_.caller(op)) {
      if (const StringId line = recording_.ops[op].line; line != 0) return line;
      if (forwards_[op] != kNoOp) return recording_.ops[forwards_[op]].line;
    }
    return 0;
  }

  void look_at_saves_until(TimeNs time_ns) {
    for (; save_ < recording_.saves.size() && recording_.saves[save_].time_ns <= time_ns; ++save_) {
      const auto& save = recording_.saves[save_];
      const auto known = alive_.find(save.tensor.address);
      if (known == alive_.end()) continue;
      MemoryBlock& block = blocks_[known->second];
      if (block.slot == MemoryBlock::kNoSlot) {
        block.slot = save.slot;
        block.slot_region = save.region;
      }
      if (save.is_kept && block.kind == BlockKind::kForward) block.kind = BlockKind::kKept;
    }
  }

  /// Looks at ops that began by `time_ns`, and marks arguments of ops in AccumulateGrad as weight
  /// gradients.
  void look_at_ops_until(TimeNs time_ns) {
    for (; op_ < recording_.ops.size() && recording_.ops[op_].begin_ns <= time_ns; ++op_) {
      const auto& op = recording_.ops[op_];
      const size_t node = uses_in_nodes_.innermost_at(op.thread, op.begin_ns);
      if (node == MemoryBlock::kNone) continue;
      if (recording_.text(recording_.nodes[node].name) != kAccumulateGrad) continue;
      for (const RecordedTensor& tensor : op.arguments) {
        const auto known = alive_.find(tensor.address);
        if (known == alive_.end()) continue;
        BlockKind& kind = blocks_[known->second].kind;
        if (kind == BlockKind::kBackward) kind = BlockKind::kWeightGradient;
      }
    }
  }

  /// By region: the time when the backward pass first replays the region or asks for a slot of it.
  std::unordered_map<uint64_t, TimeNs> first_wanted() const {
    std::unordered_map<uint64_t, TimeNs> wanted;
    const auto add = [&](uint64_t region, TimeNs time_ns) {
      TimeNs& first_ns = wanted.emplace(region, time_ns).first->second;
      first_ns = std::min(first_ns, time_ns);
    };
    // A load is recorded when the tensor is there, so after the replay that made the tensor.
    for (const auto& load : recording_.loads) add(load.region, load.time_ns);
    for (const auto& replay : recording_.replays) add(replay.region, replay.begin_ns);
    return wanted;
  }

  /// True if the block is alive when the backward pass first needs something of its region.
  bool waits_for_backward(const MemoryBlock& block,
                          const std::unordered_map<uint64_t, TimeNs>& first_wanted) const {
    if (block.end == MemoryBlock::kNone) return true;
    const auto wanted = first_wanted.find(block.region);
    return wanted != first_wanted.end() && wanted->second <= recording_.memory[block.end].time_ns;
  }

  const Recording& recording_;
  detail::RunningSpans<ReplayEvent> replays_;
  detail::RunningSpans<NodeEvent> nodes_;
  detail::RunningSpans<NodeEvent> uses_in_nodes_;  // for queries at begins of ops
  const detail::OpNesting nesting_;
  const std::vector<size_t> forwards_;
  const std::vector<size_t> makers_;
  std::map<std::pair<uint32_t, uint64_t>, size_t> ops_;  // by thread and number
  std::unordered_map<uint64_t, size_t> alive_;           // indices into blocks_ by address
  std::vector<MemoryBlock> blocks_;
  size_t save_ = 0;  // index of the save to look at next
  size_t op_ = 0;    // index of the op to look at next
};

}  // namespace

const char* kind_name(BlockKind kind) {
  constexpr std::array<const char*, kBlockKinds> kNames{
      "outside of regions", "forward", "kept", "replayed", "backward", "weights' gradients"};
  return kNames.at(static_cast<size_t>(kind));
}

std::vector<MemoryBlock> memory_blocks(const Recording& recording) {
  return BlockFinder(recording).run();
}

int64_t AliveByKind::total() const {
  return std::accumulate(bytes.begin(), bytes.end(), int64_t{0});
}

std::vector<AliveByKind> alive_by_kind(const Recording& recording,
                                       const std::vector<MemoryBlock>& blocks) {
  std::vector<AliveByKind> alive(recording.memory.size());
  for (const MemoryBlock& block : blocks) {
    const auto kind = static_cast<size_t>(block.kind);
    alive[block.begin].bytes[kind] += block.bytes;
    if (block.end != MemoryBlock::kNone) alive[block.end].bytes[kind] -= block.bytes;
  }
  for (size_t i = 0; i < alive.size(); ++i) {
    alive[i].time_ns = recording.memory[i].time_ns;
    if (i == 0) continue;
    for (size_t kind = 0; kind < kBlockKinds; ++kind)
      alive[i].bytes[kind] += alive[i - 1].bytes[kind];
  }
  return alive;
}

size_t peak_of(const std::vector<AliveByKind>& alive) {
  size_t peak = MemoryBlock::kNone;
  int64_t most = 0;
  for (size_t i = 0; i < alive.size(); ++i) {
    if (alive[i].total() <= most) continue;
    most = alive[i].total();
    peak = i;
  }
  return peak;
}

}  // namespace remat
