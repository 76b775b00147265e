// SPDX-License-Identifier: BSD-3-Clause

// Hearing of the nodes of backward, and of which backwards are the step's.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <remat/budget/step_log.h>

namespace remat {

class StepListener;

/// The nodes of one step. Guarded by the listener's lock.
///
/// Note [Backwards of others]: between the forward of a step and the next one other models may run
/// backward, too. A backward is the step's if it runs a node that the forward of its region has
/// made, which may come late. So all nodes are written down, and those of a backward that has ended
/// without such a node are taken out again.
class StepNodes {
 public:
  /// A node begins, inside of no other node of this thread. Returns its number in the log; kNone if
  /// it is not written down, or is part of a node that has begun its backward on another thread.
  uint32_t begin(StepLog& log, StepLog::Moment& next, const at::RecordFunction& node,
                 const StepListener& listener);
  void end(StepLog& log, StepLog::Moment& next, uint32_t node, int64_t now_ns);

  /// The number of the node, if the forward's thread has made it; else kNoSequence.
  static uint64_t sequence_of(const at::RecordFunction& node, const StepListener& listener);

  /// The log ends.
  void finish(StepLog& log);

 private:
  struct Running {
    uint64_t task;
    uint32_t node;
  };

  void begin_backward(StepLog& log, uint64_t task);
  void forget_others(StepLog& log);
  bool is_later(const StepLog& log, const at::RecordFunction& node, uint64_t sequence,
                const StepListener& listener) const;

  uint64_t task_ = ~uint64_t{0};  // the backward that runs
  bool is_own_ = false;           // it has run a node of the step
  bool has_own_ = false;          // one before it has
  // Sizes of the log's lists when that backward began.
  size_t nodes_ = 0;
  size_t inner_nodes_ = 0;
  size_t loads_ = 0;
  std::vector<Running> running_;        // outermost nodes
  std::vector<uint64_t> node_threads_;  // threads of nodes, beside the forward's
};

/// Callbacks for the nodes of backward.
struct NodeCallbacks {
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& node);
  static void end(const at::RecordFunction& node, at::ObserverContext* context);
};

}  // namespace remat
