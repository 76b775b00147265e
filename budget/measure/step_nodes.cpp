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

/// The index of a node, from its begin to its end.
struct Begun final : at::ObserverContext {
  Begun(uint64_t of_step, uint32_t number) : step(of_step), node(number) {}
  const uint64_t step;
  const uint32_t node;  // kNone: not logged
};

/// True for a node that the forward has made.
bool is_own(const StepLog& log, uint64_t sequence) {
  return !log.ops.empty() && sequence >= log.ops.front().first_node &&
         sequence < log.ops.back().end_node;
}

}  // namespace

uint64_t StepNodes::sequence_of(const at::RecordFunction& node, const StepListener& listener) {
  if (node.forwardThreadId() != listener.forward_thread()) return StepLog::kNoSequence;
  return static_cast<uint64_t>(node.seqNr());
}

/// True for a node that was made after backward began.
bool StepNodes::is_later(const at::RecordFunction& node, uint64_t sequence,
                         const StepListener& listener) const {
  if (node.seqNr() < 0) return false;  // such nodes accumulate gradients
  if (node.forwardThreadId() != listener.forward_thread())
    return std::find(node_threads_.begin(), node_threads_.end(), node.forwardThreadId()) !=
           node_threads_.end();
  return sequence >= backward_node_;
}

void StepNodes::begin_backward(StepLog& log, uint64_t task) {
  forget_others(log);
  has_own_ = has_own_ || is_own_;
  is_own_ = false;
  task_ = task;
  nodes_ = log.backward.nodes.size();
  loads_ = log.backward.loads.size();
}

/// Removes the nodes of the running pass if it was not the step's.
void StepNodes::forget_others(StepLog& log) {
  if (is_own_) return;
  log.backward.nodes.resize(nodes_);
  log.backward.loads.resize(loads_);
  if (has_own_) return;
  backward_node_ = StepLog::kNoSequence;
  log.backward.later_node.clear();
  log.backward.goes_on = false;
}

uint32_t StepNodes::begin(StepLog& log, StepLog::Moment& next, const at::RecordFunction& node,
                          const StepListener& listener) {
  const auto task = static_cast<uint64_t>(torch::autograd::get_current_graph_task_id());
  const uint64_t sequence = sequence_of(node, listener);
  const uint64_t thread = at::RecordFunction::currentThreadId();
  const auto outer = std::find_if(running_.begin(), running_.end(),
                                  [&](const auto& other) { return other.first != task; });
  StepLog::Backward& backward = log.backward;
  if (outer != running_.end()) {
    backward.nodes[outer->second].inner.push_back(sequence);
    return StepLog::kNone;
  }
  if (task != task_) begin_backward(log, task);
  if (backward.nodes.empty() && listener.is_of_this_thread())
    backward_node_ = at::sequence_number::peek();
  const bool is_step = is_own(log, sequence);
  is_own_ = is_own_ || is_step;
  if (is_later(node, sequence, listener) && backward.later_node.empty())
    backward.later_node = node.name();
  if (!listener.is_of_this_thread() &&
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
                            .begin = next++,
                            .begin_ns = frequent_thread_ns()});
  return number;
}

void StepNodes::end(StepLog& log, StepLog::Moment& next, uint32_t node, int64_t now_ns) {
  std::erase_if(running_, [&](const auto& running) { return running.second == node; });
  log.backward.nodes[node].end = next++;
  log.backward.nodes[node].end_ns = now_ns;
}

void StepNodes::finish(StepLog& log) {
  if (has_own_) forget_others(log);
}

namespace {

std::unique_ptr<at::ObserverContext> begin_node(const at::RecordFunction& node) {
  StepListener* const listener = StepListener::current.load();
  if (!listener) return nullptr;
  StepThread& here = listener->here();
  const bool is_inner = here.nodes++ > 0;
  uint32_t number = StepLog::kNone;
  listener->write([&](StepLog& log, StepLog::Moment& next) {
    if (!is_inner) {
      here.node = number = listener->nodes().begin(log, next, node, *listener);
    } else if (here.node != StepLog::kNone) {
      log.backward.nodes[here.node].inner.push_back(StepNodes::sequence_of(node, *listener));
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
  listener->write([&](StepLog& log, StepLog::Moment& next) {
    listener->nodes().end(log, next, begun->node, now_ns);
  });
}

}  // namespace

at::RecordFunctionCallback node_callbacks() {
  return at::RecordFunctionCallback(&begin_node, &end_node)
      .scopes({at::RecordScope::BACKWARD_FUNCTION});
}

}  // namespace remat
