// SPDX-License-Identifier: BSD-3-Clause

// Walking a graph for its leaves, and exchanging their gradients.
#include "leaf_grads.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "graph_walk.h"

namespace remat {

LeafGrads::~LeafGrads() {
  for (auto& [impl, leaf] : leaves_) leaf.tensor.mutable_grad() = leaf.grad;
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
  if (leaves_.try_emplace(tensor.unsafeGetTensorImpl(), Leaf{tensor, grad}).second)
    grad = at::Tensor();
}

}  // namespace remat
