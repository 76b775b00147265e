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
  /// Behind a node that is gone.
  GraphPlace() = default;

  /// Of a tensor that is no stale view: Note [When a view gets its node].
  explicit GraphPlace(const at::Tensor& tensor);

  /// Puts `tensor` there, which is outside of any graph. Where the node is gone it is no leaf
  /// either, and a gradient that reaches it goes nowhere.
  void give_to(at::Tensor tensor) const;

 private:
  bool requires_grad_ = true;
  bool is_leaf_ = false;
  WeakNodePtr node_{NodePtr()};
  uint32_t output_nr_ = 0;
};

}  // namespace remat
