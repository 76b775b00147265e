// SPDX-License-Identifier: BSD-3-Clause

// Who sees the backwards of a thread that begin inside a region's function.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <vector>

#include <remat/tape/export.h>

namespace remat {

class Scope;
using EdgeList = std::vector<torch::autograd::Edge>;

/// The part of a scope that sees backwards inside it. Each tells the next one outward, if that is
/// to know. On the thread of the scope only.
class REMAT_API BackwardObserver {
 public:
  BackwardObserver(const BackwardObserver&) = delete;
  BackwardObserver& operator=(const BackwardObserver&) = delete;
  virtual ~BackwardObserver() = default;

  /// A backward is about to run from `roots`.
  virtual void before_backward(const EdgeList& roots) = 0;

  /// It will pass this number of hooks on the gradients of tensors.
  virtual void before_hooks(size_t count) = 0;

  /// It accumulates into leaves.
  virtual void before_accumulate(const EdgeList& roots) = 0;

  /// It has ended; `gradients`: what it returns, to the innermost region only.
  virtual void after_backward(c10::ArrayRef<at::Tensor> gradients) = 0;

  /// That of this thread's innermost scope that has one; null if none has.
  static BackwardObserver* current();

 protected:
  /// Of `scope`.
  explicit BackwardObserver(const Scope& scope) : scope_(scope) {}

  /// The next one outward; null if there is none.
  BackwardObserver* around() const;

 private:
  const Scope& scope_;
};

}  // namespace remat
