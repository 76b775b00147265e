// SPDX-License-Identifier: BSD-3-Clause

// Walking a graph for its leaves, and exchanging their .grad.
#include "leaf_grads.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <utility>

#include <remat/engine/current_node.h>
#include <remat/engine/graph_walk.h>
#include <remat/engine/tensor_meta.h>

namespace remat {

LeafGrads::~LeafGrads() {
  for (auto& [impl, leaf] : leaves_) leaf.first.mutable_grad() = leaf.second;
  for (Retained& retained : retained_)
    retained.node->add_retains_grad_hook(std::move(retained.hook), retained.output);
}

void LeafGrads::set_aside(const EdgeList& roots) {
  visit_nodes(roots, [&](torch::autograd::Node& node) {
    auto* const accumulate = dynamic_cast<torch::autograd::AccumulateGrad*>(&node);
    if (accumulate) set_aside(accumulate->variable);
  });
}

void LeafGrads::set_aside_retained(c10::ArrayRef<at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.is_leaf()) set_aside(tensor);
  }
}

void LeafGrads::set_aside(const at::Tensor& tensor) {
  at::Tensor& grad = tensor.mutable_grad();
  if (leaves_.try_emplace(tensor.unsafeGetTensorImpl(), tensor, grad).second) grad = before(tensor);
}

at::Tensor LeafGrads::before(const at::Tensor& tensor) const {
  for (const GradBefore& kept : region_.inner_backwards().grads_before) {
    if (kept.tensor != tensor.unsafeGetTensorImpl()) continue;
    TORCH_CHECK(!kept.version.changed(), modified_in_place(TensorMeta(kept.grad), kept.version),
                "[replay] ", region_.label(),
                ": expected the .grad that a tensor had before a backward inside the function, to "
                "which that has added, as it was. Do not write it between forward and backward.");
    return kept.grad;
  }
  return {};
}

void LeafGrads::take_retained(const EdgeList& roots, c10::ArrayRef<at::Tensor> but,
                              c10::function_ref<bool(const torch::autograd::Node&)> is_own) {
  const auto is_known = [&](const torch::autograd::Node& node, size_t output) {
    return std::any_of(but.begin(), but.end(), [&](const at::Tensor& tensor) {
      return static_cast<size_t>(tensor.output_nr()) == output && !tensor.is_leaf() &&
             current_node(tensor) == &node;
    });
  };
  visit_nodes(roots, [&](torch::autograd::Node& node) {
    if (node.retains_grad_hooks().empty() || is_own(node)) return;
    std::vector<size_t> outputs;
    for (const auto& [output, hook] : node.retains_grad_hooks()) {
      if (!is_known(node, output)) outputs.push_back(output);
    }
    for (const size_t output : outputs)
      retained_.push_back({node.getptr(), output, node.pop_retains_grad_hook(output)});
  });
}

SetGrads::SetGrads(const OutsideLog& outside)
    : tensors_(outside.captured()), sets_new_(outside.sets_grads()) {
  for (const at::Tensor& tensor : tensors_) grads_.push_back(tensor.mutable_grad());
}

SetGrads::~SetGrads() {
  for (const auto i : c10::irange(tensors_.size())) {
    at::Tensor& grad = tensors_[i].mutable_grad();
    if (!grad.is_same(grads_[i]) && (sets_new_ || grads_[i].defined())) grad = grads_[i];
  }
}

}  // namespace remat
