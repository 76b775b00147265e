// SPDX-License-Identifier: BSD-3-Clause

// A tensor's position in autograd's graph.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include <remat/tape/export.h>
#include <remat/tape/torch_compat.h>

namespace remat {

/// The position of a tensor, which can be given to other tensors. Holds the node weakly.
class REMAT_API GraphPlace {
 public:
  /// A position behind a node that has been freed.
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
