// SPDX-License-Identifier: BSD-3-Clause

// The events of one step, in order.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/export.h>

namespace remat {

class OpInfo;

/// True if a profile of device `counted` counts memory of `device`.
inline bool counts_on(c10::Device counted, c10::Device device) {
  return counted.is_cpu() ? device.is_cpu() : device == counted;
}

/// The ops, nodes, memory and replays of one step. A moment is the number of an event, so only the
/// order of moments matters. Copies are independent.
struct REMAT_API StepLog {
  using Moment = uint32_t;
  static constexpr Moment kNever = ~Moment{0};
  static constexpr uint32_t kNone = ~uint32_t{0};

  /// A block from c10's allocators.
  struct Block {
    int64_t bytes;
    Moment born;
    Moment died = kNever;
    c10::Device device = c10::kCPU;
    bool in_replay = false;  ///< Made by a replay
    bool is_result = false;  ///< Returned by an op; may be false for CPU memory
  };

  /// A tensor that an op has returned.
  struct Result {
    uint16_t result;   ///< Index among the op's results
    uint16_t element;  ///< Index in that result, if the result is a list of tensors
    uint32_t block;    ///< Index of the memory in `blocks`; kNone if no allocator has reported it
  };

  /// An op of the forward that ran inside no other op, or inside the handler of a tensor subclass.
  struct Op {
    const OpInfo* op = nullptr;
    uint32_t place = 0;   ///< Index into `places`
    uint32_t record = 0;  ///< Number of records on the tape when the op began
    Moment begin = 0;
    Moment end = kNever;
    int64_t begin_ns = 0;  ///< CPU time of the thread
    int64_t end_ns = 0;
    uint64_t gradients = 0;     ///< Bit i: the op's i-th tensor argument requires grad
    uint64_t first_node = 0;    ///< First sequence number of the autograd nodes that the op made
    uint64_t end_node = 0;      ///< One past the last of these sequence numbers
    uint32_t first_result = 0;  ///< Index in `results` of the op's first result
    uint32_t outer = kNone;     ///< The op whose handler (of a tensor subclass) runs this op
  };

  /// The id of a region, and the number of the region's slot for a tensor that autograd saved.
  using RegionSlot = std::pair<uint64_t, size_t>;

  /// A tensor that autograd has saved. The node that loads it is the node that saved it. If none
  /// loads it, the newest node that backward runs among those from first_node to newest_node counts
  /// as the one that saved it. Backward need not run all of them: an in-place op may save a clone
  /// of a tensor, and the clone has a node that never runs.
  struct Save {
    uint32_t op;  ///< The newest op when the tensor was saved
    uint64_t first_node;
    uint64_t newest_node;
    RegionSlot slot;
  };

  /// A node that backward has run inside no other node. The node of an op that writes a view
  /// runs inside another node (CopySlices).
  struct Node {
    std::string name;
    /// Autograd's sequence number; kNoSequence for nodes that accumulate gradients, and for nodes
    /// made on another thread than the forward's, since each thread counts by itself.
    uint64_t sequence;
    uint64_t thread;  ///< The thread that ran the node, as numbered by at::RecordFunction
    Moment begin;
    Moment end = kNever;
    int64_t begin_ns = 0;  ///< CPU time of `thread`
    int64_t end_ns = 0;
    std::vector<uint64_t> inner{};  ///< Sequence numbers of the nodes that ran inside this node
  };
  static constexpr uint64_t kNoSequence = ~uint64_t{0};

  /// A load of a saved tensor by a node, or by a group's replay that the node began.
  struct Load {
    uint32_t node;
    Moment at;
    RegionSlot slot;
  };

  /// A replay, including other replays that it began.
  struct Replay {
    uint64_t thread;  ///< Like Node::thread
    Moment begin;
    Moment end = kNever;
    int64_t begin_ns = 0;
    int64_t end_ns = 0;
  };

  struct Backward {
    std::vector<Node> nodes{};
    std::vector<Load> loads{};
    /// Name of the first node that ran although it was made after backward began, by backward
    /// itself (create_graph) or by a later step. No node after this one is logged. Empty: none.
    std::string later_node{};
    bool goes_on = false;  ///< A node of this step ran after `later_node`

    /// Explains why the nodes cannot be profiled: a node has run twice, or a node of this step has
    /// run after `later_node`. "" if they can.
    std::string fault() const;
  };

  /// Name of a region inside the outermost one; empty: none.
  std::string inner_region;
  uint64_t region = 0;  ///< Id of the outermost region that ran; 0: none
  Backward backward;
  std::vector<Op> ops;
  std::vector<Result> results;
  std::vector<Save> saves;  ///< By slot of the region
  std::vector<Replay> replays;
  std::vector<std::pair<uint32_t, int64_t>>
      reruns;                           ///< Records run by replays, with their CPU time in ns
  std::vector<Block> blocks;            ///< In the order of `born`
  std::vector<std::string> places{""};  ///< Modules and named calls
  Moment forward_end = kNever;
  Moment end = kNever;

  /// Bytes alive after the event of each moment, in blocks for which `counts` returns true.
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

  /// The op's results, as [first, end) of `results`.
  std::pair<size_t, size_t> results_of(size_t op) const {
    const size_t end_result = op + 1 < ops.size() ? ops[op + 1].first_result : results.size();
    return {ops[op].first_result, end_result};
  }

  /// True if op number `op`, or an op inside which it ran, ends at or after that moment.
  bool runs_at(size_t op, Moment moment) const {
    for (; op != kNone; op = ops[op].outer) {
      if (ops[op].end >= moment) return true;
    }
    return false;
  }

  /// True for memory that was allocated after the forward and outside of replays.
  bool is_of_backward(const Block& block) const {
    return block.born > forward_end && !block.in_replay;
  }

  /// Note [Memory of libraries]: the first use of an accelerator by a library may allocate memory
  /// for good, such as cuBLAS' workspace for each thread and stream. No tensor has that memory, and
  /// no later step allocates it again, so that memory does not count as part of a step.
  ///
  /// True for memory of libraries: accelerator memory that no op has returned and that was alive
  /// when the log ended.
  static bool is_of_library(const Block& block) {
    return !block.device.is_cpu() && !block.is_result && block.died == kNever;
  }

  /// The accelerator on which the forward has made most memory; the CPU if it used none.
  c10::Device main_device() const;

  /// Accelerators other than `device` on which the forward made memory: "cuda:1, cuda:2"; "": none.
  std::string other_accelerators(c10::Device device) const;

  /// Sets the size of blocks to 0 unless counts_on(device, block.device).
  void count_only(c10::Device device);
};

}  // namespace remat
