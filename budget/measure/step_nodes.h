// SPDX-License-Identifier: BSD-3-Clause

// Logs backward's nodes, and finds the backward passes that belong to the step.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <utility>
#include <vector>

#include <remat/budget/step_log.h>

namespace remat {

/// Logs the nodes of one step. Guarded by the listener's lock.
///
/// Note [Backwards of others]: between the forward of a step and the next one, other models may run
/// backward, too. A backward pass belongs to the step if it runs a node that the forward of the
/// step's region has made, perhaps after many other nodes. So all nodes are logged, and those of a
/// pass that ended without a node of the step are removed again.
class StepNodes {
 public:
  /// `next`: the log's next moment. `forward_thread`: as numbered by at::RecordFunction.
  StepNodes(StepLog& log, StepLog::Moment& next, uint64_t forward_thread)
      : log_(log), next_(next), forward_thread_(forward_thread) {}

  /// Logs the begin of a node that runs inside no other node of this thread. Returns the node's
  /// index in the log; kNone if the node is not logged, or is in a backward pass that a running
  /// node on another thread has begun.
  uint32_t begin(const at::RecordFunction& node);
  void end(uint32_t node, int64_t now_ns);

  /// Sequence number of a node that the forward's thread has made; kNoSequence for other nodes.
  uint64_t sequence_of(const at::RecordFunction& node) const;

  void finish() {
    if (has_own_) forget_others();
  }

 private:
  void begin_backward(uint64_t task);
  void forget_others();
  bool is_own(uint64_t sequence) const;
  bool is_later(const at::RecordFunction& node, uint64_t sequence) const;

  StepLog& log_;
  StepLog::Moment& next_;
  const uint64_t forward_thread_;
  uint64_t task_ = ~uint64_t{0};  // graph task of the running backward pass
  bool is_own_ = false;           // true if the running pass has run a node of the step
  bool has_own_ = false;          // true if an earlier pass has run a node of the step
  // Sizes of the log's lists when the running pass began.
  size_t nodes_ = 0;
  size_t loads_ = 0;
  // Nodes of the forward's thread with this sequence number or a later one were made after backward
  // began. kNoSequence if unknown, because backward began on another thread.
  uint64_t backward_node_ = StepLog::kNoSequence;
  std::vector<std::pair<uint64_t, uint32_t>> running_;  // outermost nodes, with their graph tasks
  std::vector<uint64_t> node_threads_;  // threads other than the forward's that run nodes
};

at::RecordFunctionCallback node_callbacks();

}  // namespace remat
