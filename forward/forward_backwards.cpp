// SPDX-License-Identifier: BSD-3-Clause

// Recording a forward's backward passes for its replays.
#include "forward_backwards.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <utility>

#include <remat/engine/graph_walk.h>
#include <remat/engine/hook_count.h>
#include <remat/engine/tensor_hash.h>

namespace remat {

void ForwardBackwards::before_backward(const EdgeList& roots) {
  region_.inner_backwards().any = true;
  if (calls_) calls_->check_backward(roots);
  if (state_.recorder) state_.recorder->give_up("a backward in the function");
  // First, because the observer of a replay around this region exchanges .grads.
  if (around()) around()->before_backward(roots);
  if (!is_replayed()) return;
  region_.inner_backwards().roots.push_back(hash_of_views(roots));
  grads_.clear();
  for (const at::Tensor& tensor : region_.outside().captured()) {
    if (!tensor.is_leaf()) note_grad(tensor);
  }
}

void ForwardBackwards::before_hooks(size_t count) {
  if (is_replayed()) region_.inner_backwards().hooks.push_back(count);
  if (around()) around()->before_hooks(count);
}

void ForwardBackwards::before_accumulate(const EdgeList& roots) {
  if (around()) around()->before_accumulate(roots);  // First, because around() may exchange .grads.
  if (!is_replayed()) return;
  visit_nodes(roots, [&](torch::autograd::Node& node) {
    auto* const accumulate = dynamic_cast<torch::autograd::AccumulateGrad*>(&node);
    if (!accumulate) return;
    check_leaf(node, accumulate->variable);
    note_grad(accumulate->variable);
  });
}

void ForwardBackwards::check_leaf(const torch::autograd::Node& node, const at::Tensor& leaf) const {
  if (state_.storages.find(memory_of(leaf)).is_inside()) return;
  TORCH_CHECK_NOT_IMPLEMENTED(
      count_accumulated(node) == 0, "[checkpoint] ", region_.label(), ", node ", node.name(),
      ": expected a backward inside the function that reaches no leaf from outside (",
      TensorMeta(leaf).str(),
      ") with hooks that run after its gradient is accumulated, got one that does: they would run "
      "again with the replay. Remove them around the region, or put the backward into a SAVE "
      "call.");
}

void ForwardBackwards::note_grad(const at::Tensor& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeGetTensorImpl();
  const at::Tensor& grad = tensor.mutable_grad();
  if (!grad.defined()) grads_made_.insert(impl);
  if (!grads_made_.contains(impl))
    grads_.emplace_back(tensor, GradBefore{impl, grad, SavedVersion(grad)});
}

/// Keeps the old .grad if the backward set another tensor as .grad: Note [The .grad of a replay].
void ForwardBackwards::keep_grads() {
  for (auto& [tensor, before] : std::exchange(grads_, {})) {
    if (tensor.mutable_grad().is_same(before.grad)) {
      if (before.version.changed()) grads_written_.insert(before.tensor);
      continue;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        !grads_written_.contains(before.tensor), "[checkpoint] ", region_.label(),
        ": expected backwards inside the function that add to the .grad of a tensor from outside (",
        TensorMeta(tensor).str(),
        ") all with create_graph or all without, got both: a replay would not find what was there "
        "before. Set that .grad to None before the region, or use autograd.grad.");
    grads_made_.insert(before.tensor);
    region_.inner_backwards().grads_before.push_back(std::move(before));
  }
}

void ForwardBackwards::after_backward(c10::ArrayRef<at::Tensor> gradients) {
  if (is_replayed()) {
    keep_grads();
    if (!gradients.empty() && region_.determinism() != Determinism::kNone)
      region_.inner_backwards().gradients.push_back(hash_of(gradients));
  }
  if (around()) around()->after_backward({});
}

}  // namespace remat
