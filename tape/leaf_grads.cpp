// SPDX-License-Identifier: BSD-3-Clause

// Walking a graph for its leaves, and exchanging their gradients.
#include "leaf_grads.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <unordered_set>
#include <vector>

namespace remat {

LeafGrads::~LeafGrads() {
  for (auto& [impl, leaf] : leaves_) leaf.tensor.mutable_grad() = leaf.grad;
}

void LeafGrads::set_aside(const EdgeList& roots) {
  std::unordered_set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open;
  const auto visit = [&](const EdgeList& edges) {
    for (const torch::autograd::Edge& edge : edges) {
      if (edge.is_valid() && seen.insert(edge.function.get()).second)
        open.push_back(edge.function.get());
    }
  };
  visit(roots);
  while (!open.empty()) {
    torch::autograd::Node* const node = open.back();
    open.pop_back();
    visit(node->next_edges());
    auto* const accumulate = dynamic_cast<torch::autograd::AccumulateGrad*>(node);
    if (!accumulate) continue;
    at::Tensor& tensor = accumulate->variable;
    const bool is_new =
        leaves_.try_emplace(tensor.unsafeGetTensorImpl(), Leaf{tensor, tensor.grad()}).second;
    if (is_new) tensor.mutable_grad() = at::Tensor();
  }
}

}  // namespace remat
