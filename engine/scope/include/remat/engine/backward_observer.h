// SPDX-License-Identifier: BSD-3-Clause

// Observers of backward passes that begin inside a region's function.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <vector>

#include <remat/engine/export.h>

namespace remat {

class Scope;
using EdgeList = std::vector<torch::autograd::Edge>;

/// The part of a scope that observes backward passes inside the scope. Each observer calls the next
/// observer outward if that one needs to know of the pass. For the scope's thread only.
class REMAT_API BackwardObserver {
 public:
  BackwardObserver(const BackwardObserver&) = delete;
  BackwardObserver& operator=(const BackwardObserver&) = delete;
  virtual ~BackwardObserver() = default;

  /// A backward pass is about to run from `roots`.
  virtual void before_backward(const EdgeList& roots) = 0;

  /// The backward pass will run `count` hooks on gradients of tensors.
  virtual void before_hooks(size_t count) = 0;

  /// The backward pass is about to accumulate into the leaves reachable from `roots`.
  virtual void before_accumulate(const EdgeList& roots) = 0;

  /// The backward pass has ended. `gradients` are its results, passed to the innermost region only.
  virtual void after_backward(c10::ArrayRef<at::Tensor> gradients) = 0;

  /// The observer of this thread's innermost scope that has one; null if none has.
  static BackwardObserver* current();

 protected:
  explicit BackwardObserver(const Scope& scope) : scope_(scope) {}

  /// The next observer outward; null if there is none.
  BackwardObserver* around() const;

 private:
  const Scope& scope_;
};

}  // namespace remat
