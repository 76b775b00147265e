// SPDX-License-Identifier: BSD-3-Clause

// Backward passes that a region's function runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include <remat/engine/backward_observer.h>

#include "forward_calls.h"
#include "forward_state.h"

namespace remat {

/// Records what a replay's backward passes are compared with, and the .grads they must start from.
class ForwardBackwards final : public BackwardObserver {
 public:
  /// `calls` points to null until the first named call.
  ForwardBackwards(ForwardState& state, const std::unique_ptr<ForwardCalls>& calls)
      : BackwardObserver(state.scope), state_(state), region_(*state.region), calls_(calls) {}

  void before_backward(const EdgeList& roots) override;
  void before_hooks(size_t count) override;
  void before_accumulate(const EdgeList& roots) override;
  void after_backward(c10::ArrayRef<at::Tensor> gradients) override;

 private:
  /// True if a replay repeats the backward pass.
  bool is_replayed() const {
    return region_.intercept() && !state_.is_saving && state_.is_own_code();
  }
  void note_grad(const at::Tensor& tensor);
  void keep_grads();
  void check_leaf(const torch::autograd::Node& node, const at::Tensor& leaf) const;

  ForwardState& state_;
  Region& region_;
  const std::unique_ptr<ForwardCalls>& calls_;
  // Tensors with their .grad before the running backward.
  std::vector<std::pair<at::Tensor, GradBefore>> grads_;
  // grads_written_: tensors whose .grad a backward has written in place. grads_made_: tensors whose
  // old .grad a replay can restore, because it was undefined or is kept.
  std::unordered_set<const c10::TensorImpl*> grads_written_;
  std::unordered_set<const c10::TensorImpl*> grads_made_;
};

}  // namespace remat
