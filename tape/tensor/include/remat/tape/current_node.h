// SPDX-License-Identifier: BSD-3-Clause

// A tensor's place in autograd's graph, without changing the graph.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

namespace remat {

/// True for a view whose base was written since: autograd makes its node anew when it is asked.
///
/// Note [When a view gets its node]: the order in which nodes are made decides the order in which
/// gradients are summed, and so their last bits. Asking a stale view for its node here would make
/// it earlier than plain code does.
inline bool is_stale_view(const at::Tensor& tensor) {
  const auto* const meta = torch::autograd::impl::get_view_autograd_meta(tensor);
  return meta && meta->has_bw_view() && meta->get_attr_version() != tensor._version();
}

/// The node of `tensor`, or of its base if it is a stale view; null if there is none.
inline torch::autograd::Node* current_node(const at::Tensor& tensor) {
  return (is_stale_view(tensor) ? tensor._base() : tensor).grad_fn().get();
}

/// True if `tensor` has a node once somebody asks. Not so of a leaf, and of a view that was made
/// with grad mode off, until its base is written.
inline bool will_have_node(const at::Tensor& tensor) {
  return is_stale_view(tensor) ? tensor.requires_grad() : tensor.grad_fn() != nullptr;
}

}  // namespace remat
