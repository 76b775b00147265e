// SPDX-License-Identifier: BSD-3-Clause

// Backwards that a region's function runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include <remat/tape/backward_observer.h>

#include "forward_calls.h"
#include "forward_state.h"

namespace remat {

/// Notes what a replay, which runs them too, is compared with, and what it finds in .grad.
class ForwardBackwards final : public BackwardObserver {
 public:
  /// `calls`: null until the first named call.
  ForwardBackwards(ForwardState& state, const std::unique_ptr<ForwardCalls>& calls)
      : BackwardObserver(state.scope), state_(state), region_(*state.region), calls_(calls) {}

  void before_backward(const EdgeList& roots) override;
  void before_hooks(size_t count) override;
  void before_accumulate(const EdgeList& roots) override;
  void after_backward(c10::ArrayRef<at::Tensor> gradients) override;

 private:
  /// True if the replay runs it.
  bool is_replayed() const {
    return region_.intercept() && !state_.is_saving && state_.is_own_code();
  }
  void note_grad(const at::Tensor& tensor);
  void keep_grads();
  void check_leaf(const torch::autograd::Node& node, const at::Tensor& leaf) const;

  ForwardState& state_;
  Region& region_;
  const std::unique_ptr<ForwardCalls>& calls_;
  // Tensors with what their .grad was before the backward that runs.
  std::vector<std::pair<at::Tensor, GradBefore>> grads_;
  // Those whose .grad a backward has written in place; those whose replays know what it was.
  std::unordered_set<const c10::TensorImpl*> grads_written_;
  std::unordered_set<const c10::TensorImpl*> grads_made_;
};

}  // namespace remat
