// SPDX-License-Identifier: BSD-3-Clause

// Giving a tensor another tensor's position in autograd's graph.

#include <remat/engine/current_node.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <utility>

namespace remat {
namespace {

/// Stands for a node that was freed because nobody needed it any more.
class FreedNode final : public torch::autograd::Node {
 public:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& /*grads*/) override {
    return {};
  }
  std::string name() const override { return "RematFreedNode"; }
};

}  // namespace

GraphPlace::GraphPlace(const at::Tensor& tensor)
    : requires_grad_(tensor.requires_grad()),
      is_leaf_(tensor.is_leaf()),
      node_(tensor.grad_fn()),
      output_nr_(tensor.output_nr()) {}

void GraphPlace::give_to(at::Tensor tensor) const {
  if (!requires_grad_) return;
  if (is_leaf_) {
    tensor.set_requires_grad(true);
  } else if (NodePtr node = node_.lock()) {
    torch::autograd::impl::set_gradient_edge(tensor, {std::move(node), output_nr_});
  } else {
    set_new_history(tensor, make_node<FreedNode>());
  }
}

}  // namespace remat
