// SPDX-License-Identifier: BSD-3-Clause

// A tensor's position in autograd's graph: finding its node without changing the graph, and giving
// the position to another tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>

#include <remat/engine/export.h>
#include <remat/engine/torch_compat.h>

namespace remat {

/// True for a view whose base has been written since the view was made. Autograd creates the view's
/// node anew when grad_fn is read next.
///
/// Note [When a view gets its node]: the order in which nodes are created decides the order in
/// which gradients are summed, and so their last bits. Reading grad_fn of a stale view here would
/// create its node earlier than plain code does.
inline bool is_stale_view(const at::TensorBase& tensor) {
  const auto* const meta = torch::autograd::impl::get_view_autograd_meta(tensor);
  return meta && meta->has_bw_view() && meta->get_attr_version() != tensor._version();
}

/// Returns the node of `tensor`, or of its base if it is a stale view; null if there is none.
inline torch::autograd::Node* current_node(const at::Tensor& tensor) {
  return (is_stale_view(tensor) ? tensor._base() : tensor).grad_fn().get();
}

/// True if `tensor` has a node or gets one when grad_fn is read. False for leaves, and for a view
/// made with grad mode off until its base is written.
inline bool will_have_node(const at::Tensor& tensor) {
  return is_stale_view(tensor) ? tensor.requires_grad() : tensor.grad_fn() != nullptr;
}

/// A tensor's position in the graph, to give to other tensors. Holds the node weakly.
class REMAT_API GraphPlace {
 public:
  /// The position of a result whose node has been freed.
  GraphPlace() = default;

  /// Position of `tensor`, which must not be a stale view: Note [When a view gets its node].
  explicit GraphPlace(const at::Tensor& tensor);

  /// Puts `tensor`, which is outside any graph, at this position. If the node has been freed, the
  /// tensor becomes a non-leaf whose gradient goes nowhere.
  void give_to(at::Tensor tensor) const;

 private:
  bool requires_grad_ = true;
  bool is_leaf_ = false;
  WeakNodePtr node_{NodePtr()};
  uint32_t output_nr_ = 0;
};

}  // namespace remat
