// SPDX-License-Identifier: BSD-3-Clause

// What happened in one step, in order.
#pragma once

#include <c10/core/Device.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <remat/tape/export.h>

namespace remat {

class OpInfo;

/// True if memory of the device counts in a profile of `counted`.
inline bool counts_on(c10::Device counted, c10::Device device) {
  return counted.is_cpu() ? device.is_cpu() : device == counted;
}

/// One step as its ops, nodes, memory and replays came and went. A moment is the number of an
/// event: only their order counts. A plain value.
struct REMAT_API StepLog {
  using Moment = uint32_t;
  static constexpr Moment kNever = ~Moment{0};
  static constexpr uint32_t kNone = ~uint32_t{0};

  /// Memory that c10's allocators gave.
  struct Block {
    int64_t bytes;
    Moment born;
    Moment died = kNever;
    c10::Device device = c10::kCPU;
    bool in_replay = false;  ///< A replay has made it.
    bool is_result = false;  ///< An op has returned it; may be false for memory of the CPU.
  };

  /// A tensor that an op has returned.
  struct Result {
    uint16_t result;   ///< Which of the op's results,
    uint16_t element;  ///< and which of a list of tensors.
    uint32_t block;    ///< Its memory; kNone if no allocator has reported it.
  };

  /// An op of the forward that ran below no other, or of the handler of a tensor of a Python class.
  struct Op {
    const OpInfo* op = nullptr;
    uint32_t place = 0;   ///< Of `places`.
    uint32_t record = 0;  ///< How many records the tape had when it began.
    Moment begin = 0;
    Moment end = kNever;
    int64_t begin_ns = 0;  ///< CPU time of the thread.
    int64_t end_ns = 0;
    uint64_t gradients = 0;     ///< Bit i: the i-th of its tensors requires one.
    uint64_t first_node = 0;    ///< The nodes of autograd's graph that it made, by sequence number:
    uint64_t end_node = 0;      ///< first_node to end_node - 1.
    uint32_t first_result = 0;  ///< Its results: in `results` from here to the next op's.
    uint32_t outer = kNone;     ///< The op that was handled, of which it is a part.
  };

  /// The slot of a region, by its id: what a tensor that autograd has saved became.
  struct RegionSlot {
    uint64_t region;
    size_t slot;
    auto operator<=>(const RegionSlot&) const = default;
  };

  /// A tensor that autograd has saved. The node that saves it is the one that asks for it. If none
  /// does, it is the newest that backward runs of those with the numbers first_node to newest_node:
  /// an op in place may clone what it saves, and the clone has a node that nobody runs.
  struct Save {
    uint32_t op;  ///< The newest op.
    uint64_t first_node;
    uint64_t newest_node;
    RegionSlot slot;
  };

  /// A node that backward has run, inside of no other: of writes to views (CopySlices) some are.
  struct Node {
    std::string name;
    /// Its number; kNoSequence for those that accumulate gradients, and for those that another
    /// thread than the forward's has made, since each thread counts for itself.
    uint64_t sequence;
    uint64_t thread;  ///< The thread that has run it, by at::RecordFunction's number.
    Moment begin;
    Moment end = kNever;
    int64_t begin_ns = 0;  ///< CPU time of that thread.
    int64_t end_ns = 0;
  };
  static constexpr uint64_t kNoSequence = ~uint64_t{0};

  /// A node that ran inside of another.
  struct InnerNode {
    uint64_t sequence;
    uint32_t outer;  ///< Of `nodes`.
  };

  /// A node has asked for a saved tensor, or a replay that it began for one of a group.
  struct Load {
    uint32_t node;
    Moment at;
    RegionSlot slot;
  };

  /// A replay, with those that it began itself.
  struct Replay {
    uint64_t thread;  ///< As Node::thread.
    Moment begin;
    Moment end = kNever;
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
  };

  /// A record that a replay has run.
  struct Rerun {
    uint32_t record;
    int64_t ns;  ///< CPU time
  };

  /// The name of a region inside the outermost one; empty: there was none.
  std::string inner_region;
  /// Nodes of the forward's thread from this number on were made since backward began; kNoSequence
  /// if backward began on another thread, where that is not known.
  uint64_t backward_node = kNoSequence;
  /// The first of those that ran: backward has made it (create_graph), or it is of a later step.
  /// From there on no node is written down. Empty: there was none.
  std::string later_node;
  bool goes_on = false;  ///< After it came a node of this step.
  uint64_t region = 0;   ///< The id of the outermost region that ran; 0 if none did.
  std::vector<Op> ops;
  std::vector<Result> results;
  std::vector<Save> saves;  ///< By slots of the region.
  std::vector<Node> nodes;
  std::vector<InnerNode> inner_nodes;
  std::vector<Load> loads;
  std::vector<Replay> replays;
  std::vector<Rerun> reruns;
  std::vector<Block> blocks;            ///< By `born`.
  std::vector<std::string> places{""};  ///< Modules and named calls.
  Moment forward_end = kNever;
  Moment end = kNever;

  /// Bytes that are alive after the event of each moment, of the blocks for which `counts` holds.
  template <class Counts>
  std::vector<int64_t> bytes_alive(Counts&& counts) const {
    std::vector<int64_t> changes(size_t{end} + 1);
    for (const Block& block : blocks) {
      if (!counts(block)) continue;
      changes[block.born] += block.bytes;
      if (block.died != kNever) changes[block.died] -= block.bytes;
    }
    int64_t bytes = 0;
    for (int64_t& change : changes) change = bytes += change;
    return changes;
  }

  /// Its results, as [first, end) of `results`.
  std::pair<size_t, size_t> results_of(size_t op) const {
    const size_t end_result = op + 1 < ops.size() ? ops[op + 1].first_result : results.size();
    return {ops[op].first_result, end_result};
  }

  /// True if op number `op`, or one of which it is a part, ran at that moment or ended later.
  bool runs_at(size_t op, Moment moment) const {
    for (; op != kNone; op = ops[op].outer) {
      if (ops[op].end >= moment) return true;
    }
    return false;
  }

  /// True for memory that was made since the forward, outside of replays.
  bool is_of_backward(const Block& block) const {
    return block.born > forward_end && !block.in_replay;
  }

  /// Note [Memory of libraries]: what runs on an accelerator for the first time may allocate memory
  /// for good: cuBLAS a workspace for each thread and stream. No tensor has that memory, and no
  /// later step allocates it again, so it is no part of what a step takes.
  ///
  /// True for such memory: no op has returned it, and it was there when the log ended.
  static bool is_of_library(const Block& block) {
    return !block.device.is_cpu() && !block.is_result && block.died == kNever;
  }

  /// The accelerator on which the forward has made the most; the CPU if it used none.
  c10::Device main_device() const;

  /// The other accelerators on which the forward has made memory: "cuda:1, cuda:2"; "" for none.
  std::string other_accelerators(c10::Device device) const;

  /// Memory of other devices has no bytes from now on.
  void count_only(c10::Device device);
};

}  // namespace remat
