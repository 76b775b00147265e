// SPDX-License-Identifier: BSD-3-Clause

// Where a tensor stands in autograd's graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include <remat/tape/export.h>
#include <remat/tape/torch_compat.h>

namespace remat {

/// The place of a tensor, to be given to others. Holds its node weakly.
class REMAT_API GraphPlace {
 public:
  /// A place behind a node that is gone.
  GraphPlace() = default;

  /// The place of `tensor`, which is no stale view: Note [When a view gets its node].
  explicit GraphPlace(const at::Tensor& tensor);

  /// Puts `tensor`, which is outside of any graph, at this place. Where the node is gone the tensor
  /// is no leaf either, and a gradient that reaches it goes nowhere.
  void give_to(at::Tensor tensor) const;

 private:
  bool requires_grad_ = true;
  bool is_leaf_ = false;
  WeakNodePtr node_{NodePtr()};
  uint32_t output_nr_ = 0;
};

}  // namespace remat
