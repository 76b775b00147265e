// SPDX-License-Identifier: BSD-3-Clause

// Logging of nodes in the backward pass that runs them.
#include "step_nodes.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include <remat/inspect/thread_clock.h>

#include "step_listener.h"

namespace remat {
namespace {

/// Carries a node's index in the log from its begin callback to its end callback.
struct Begun final : at::ObserverContext {
  Begun(uint64_t of_step, uint32_t number) : step(of_step), node(number) {}
  const uint64_t step;
  const uint32_t node;  // kNone: not logged
};

}  // namespace

/// True for the sequence number of a node that the step's forward has made.
bool StepNodes::is_own(uint64_t sequence) const {
  return !log_.ops.empty() && sequence >= log_.ops.front().first_node &&
         sequence < log_.ops.back().end_node;
}

uint64_t StepNodes::sequence_of(const at::RecordFunction& node) const {
  if (node.forwardThreadId() != forward_thread_) return StepLog::kNoSequence;
  return static_cast<uint64_t>(node.seqNr());
}

/// True for a node that was made after backward began.
bool StepNodes::is_later(const at::RecordFunction& node, uint64_t sequence) const {
  if (node.seqNr() < 0) return false;  // such nodes accumulate gradients
  if (node.forwardThreadId() != forward_thread_)
    return std::find(node_threads_.begin(), node_threads_.end(), node.forwardThreadId()) !=
           node_threads_.end();
  return sequence >= backward_node_;
}

void StepNodes::begin_backward(uint64_t task) {
  forget_others();
  has_own_ = has_own_ || is_own_;
  is_own_ = false;
  task_ = task;
  nodes_ = log_.backward.nodes.size();
  loads_ = log_.backward.loads.size();
}

/// Removes the nodes of the running pass from the log if the pass does not belong to the step.
void StepNodes::forget_others() {
  if (is_own_) return;
  log_.backward.nodes.resize(nodes_);
  log_.backward.loads.resize(loads_);
  if (has_own_) return;
  backward_node_ = StepLog::kNoSequence;
  log_.backward.later_node.clear();
  log_.backward.goes_on = false;
}

uint32_t StepNodes::begin(const at::RecordFunction& node) {
  const auto task = static_cast<uint64_t>(torch::autograd::get_current_graph_task_id());
  const uint64_t sequence = sequence_of(node);
  const uint64_t thread = at::RecordFunction::currentThreadId();
  const bool is_here = thread == forward_thread_;
  const auto outer = std::find_if(running_.begin(), running_.end(),
                                  [&](const auto& other) { return other.first != task; });
  StepLog::Backward& backward = log_.backward;
  if (outer != running_.end()) {
    backward.nodes[outer->second].inner.push_back(sequence);
    return StepLog::kNone;
  }
  if (task != task_) begin_backward(task);
  if (backward.nodes.empty() && is_here) backward_node_ = at::sequence_number::peek();
  const bool is_step = is_own(sequence);
  is_own_ = is_own_ || is_step;
  if (is_later(node, sequence) && backward.later_node.empty()) backward.later_node = node.name();
  if (!is_here &&
      std::find(node_threads_.begin(), node_threads_.end(), thread) == node_threads_.end())
    node_threads_.push_back(thread);
  if (!backward.later_node.empty()) {
    const bool is_known = backward_node_ != StepLog::kNoSequence;
    backward.goes_on = backward.goes_on || is_step || (is_known && sequence < backward_node_);
    return StepLog::kNone;
  }
  const auto number = static_cast<uint32_t>(backward.nodes.size());
  running_.emplace_back(task, number);
  backward.nodes.push_back({.name = node.name(),
                            .sequence = sequence,
                            .thread = thread,
                            .begin = next_++,
                            .begin_ns = frequent_thread_ns()});
  return number;
}

void StepNodes::end(uint32_t node, int64_t now_ns) {
  std::erase_if(running_, [&](const auto& running) { return running.second == node; });
  log_.backward.nodes[node].end = next_++;
  log_.backward.nodes[node].end_ns = now_ns;
}

namespace {

std::unique_ptr<at::ObserverContext> begin_node(const at::RecordFunction& node) {
  StepListener* const listener = StepListener::current.load();
  if (!listener) return nullptr;
  StepThread& here = listener->here();
  const bool is_inner = here.nodes++ > 0;
  uint32_t number = StepLog::kNone;
  listener->write([&](StepLog& log, StepLog::Moment& /*next*/) {
    if (!is_inner) {
      here.node = number = listener->nodes().begin(node);
    } else if (here.node != StepLog::kNone) {
      log.backward.nodes[here.node].inner.push_back(listener->nodes().sequence_of(node));
    }
  });
  return std::make_unique<Begun>(listener->number(), number);
}

void end_node(const at::RecordFunction& /*node*/, at::ObserverContext* context) {
  const int64_t now_ns = frequent_thread_ns();
  StepListener* const listener = StepListener::current.load();
  const auto* const begun = static_cast<Begun*>(context);
  if (!listener || !begun || begun->step != listener->number()) return;
  StepThread& here = listener->here();
  if (--here.nodes == 0) here.node = StepLog::kNone;
  if (begun->node == StepLog::kNone) return;
  listener->write([&](StepLog&, StepLog::Moment&) { listener->nodes().end(begun->node, now_ns); });
}

}  // namespace

at::RecordFunctionCallback node_callbacks() {
  return at::RecordFunctionCallback(&begin_node, &end_node)
      .scopes({at::RecordScope::BACKWARD_FUNCTION});
}

}  // namespace remat
