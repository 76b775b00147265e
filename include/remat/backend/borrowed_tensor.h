// SPDX-License-Identifier: BSD-3-Clause

// A tensor that a region's caller passed by std::ref.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include <remat/engine/export.h>

namespace remat::detail {

/// Remembers which tensor the caller's variable held, and its version. The variable must outlive
/// the graph.
class REMAT_API BorrowedTensor {
 public:
  explicit BorrowedTensor(const at::Tensor& variable);

  /// Throws if the variable holds another tensor than at construction, or the tensor was written.
  void check_unchanged() const;

 private:
  struct Lent;

  std::shared_ptr<const Lent> lent_;
};

}  // namespace remat::detail
