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
    if (!accumulate) return;
    at::Tensor& tensor = accumulate->variable;
    const bool is_new =
        leaves_.try_emplace(tensor.unsafeGetTensorImpl(), Leaf{tensor, tensor.grad()}).second;
    if (is_new) tensor.mutable_grad() = at::Tensor();
  });
}

}  // namespace remat
