// SPDX-License-Identifier: BSD-3-Clause

// Comparing backward passes inside a region's function with the forward's.
#include "replay_backwards.h"

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>

#include <vector>

#include <remat/engine/graph_walk.h>
#include <remat/engine/replay_mismatch.h>
#include <remat/engine/tensor_hash.h>

namespace remat {

ReplayBackwards::ReplayBackwards(const Scope& scope, const Region& region, ReplayProgress& progress,
                                 const ReplayMemory& memory, const TensorHooks& hooks)
    : BackwardObserver(scope),
      region_(region),
      progress_(progress),
      memory_(memory),
      hooks_(hooks),
      thread_(at::RecordFunction::currentThreadId()),
      first_node_(at::sequence_number::peek()),
      leaf_grads_(region) {}

void ReplayBackwards::before_backward(const EdgeList& roots) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !hooks_.changed_before(roots), "[replay] ", region_.label(), ", slot ",
      progress_.slot_count(),
      ": expected a backward inside the function that passes no hook which the function has set or "
      "removed on an argument or a captured tensor, got one that does: it would run twice. Set "
      "such hooks outside of the region.");
  if (region_.intercept() && memory_.has_shadow_in_graph()) check_stays_inside(roots);
  if (const auto& forward = region_.inner_backwards().roots;
      progress_.compares_backward() && begun_ < forward.size() &&
      forward[begun_] != hash_of_views(roots)) {
    progress_.or_fail([&] { roots_mismatch(begun_); });
  }
  const std::vector<at::Tensor> captured = region_.outside().captured();
  leaf_grads_.set_aside_retained(captured);
  leaf_grads_.take_retained(roots, captured, [&](const auto& node) { return is_mine(node); });
  if (around()) around()->before_backward(roots);
}

// Tensors from outside that the forward has written get their earlier position in the graph, if
// that position is known. If not, gradients would pass through the forward's nodes, and again
// through the replay's.
void ReplayBackwards::check_stays_inside(const EdgeList& roots) const {
  visit_nodes(roots, [&](const torch::autograd::Node& node) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        !is_of_forward(node), "[replay] ", region_.label(), ", slot ", progress_.slot_count(),
        ", node ", node.name(),
        ": expected a backward inside the function that stays in what runs again, got one that "
        "reaches the graph of the forward, through a tensor from outside that the region writes "
        "in place. Pass that tensor as an argument, or write to a clone.");
  });
}

// Compares the number of hooks, because otherwise a replay would run hooks that did not exist in
// the forward, on gradients that nobody has asked for.
void ReplayBackwards::before_hooks(size_t count) {
  if (progress_.compares_backward()) {
    const size_t number = begun_++;
    const auto& forward = region_.inner_backwards().hooks;
    if (number < forward.size() && forward[number] != count)
      progress_.or_fail([&] { hooks_mismatch(number, forward[number], count); });
  }
  if (around()) around()->before_hooks(count);
}

void ReplayBackwards::hooks_mismatch(size_t backward, size_t expected, size_t got) const {
  throw ReplayMismatch(
      c10::str("[replay] ", region_.label(), ", slot ", progress_.slot_count(), ", backward ",
               backward, " inside the function: expected to pass ", expected,
               " hooks on gradients as in the forward, got ", got,
               ". One has been set or removed on a tensor from outside since. Set hooks before the "
               "region, and remove them after backward."));
}

void ReplayBackwards::roots_mismatch(size_t backward) const {
  throw ReplayMismatch(c10::str(
      "[replay] ", region_.label(), ", slot ", progress_.slot_count(), ", backward ", backward,
      " inside the function: expected to begin at the parts of tensors that it began at in "
      "the forward, got others: an index depends on state that has changed.",
      kMakeItDepend));
}

void ReplayBackwards::before_accumulate(const EdgeList& roots) {
  leaf_grads_.set_aside(roots);
}

void ReplayBackwards::after_backward(c10::ArrayRef<at::Tensor> gradients) {
  if (!gradients.empty() && progress_.compares())
    progress_.or_fail([&] { compare_gradients(gradients); });
  if (progress_.stopped()) progress_.stop();
}

// Gradients may differ from the forward's, because a backward inside the function also runs hooks
// that were set after the forward.
void ReplayBackwards::compare_gradients(c10::ArrayRef<at::Tensor> gradients) {
  const size_t number = with_gradients_++;
  const auto& forward = region_.inner_backwards().gradients;
  if (number >= forward.size() || forward[number] == hash_of(gradients)) return;
  throw ReplayMismatch(c10::str(
      "[replay] ", region_.label(), ", slot ", progress_.slot_count(), ", backward ", number,
      " inside the function: expected the gradients that it gave in the forward, got "
      "others. A hook on the gradient of a tensor from outside has been set or removed "
      "since, or memory was written unseen. Set hooks before the region, and remove them "
      "after backward."));
}

bool ReplayBackwards::is_mine(const torch::autograd::Node& node) const {
  return node.thread_id() == thread_ && node.sequence_nr() >= first_node_;
}

bool ReplayBackwards::is_of_forward(const torch::autograd::Node& node) const {
  return !is_mine(node) && region_.nodes().contains(node);
}

}  // namespace remat
