// SPDX-License-Identifier: BSD-3-Clause

// Backward passes that a region's function runs in a replay.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>

#include <remat/engine/backward_observer.h>
#include <remat/engine/region.h>
#include <remat/engine/scope.h>

#include "leaf_grads.h"
#include "replay_memory.h"
#include "replay_progress.h"
#include "tensor_hooks.h"

namespace remat {

/// Compares the backward passes of a replayed function with the forward's, and gives leaves the
/// .grad that they had in the forward. Outer scopes do not learn of effects that a replay repeats.
class ReplayBackwards final : public BackwardObserver {
 public:
  ReplayBackwards(const Scope& scope, const Region& region, ReplayProgress& progress,
                  const ReplayMemory& memory, const TensorHooks& hooks);

  void before_backward(const EdgeList& roots) override;
  void before_hooks(size_t count) override;
  void before_accumulate(const EdgeList& roots) override;
  void after_backward(c10::ArrayRef<at::Tensor> gradients) override;

 private:
  bool is_mine(const torch::autograd::Node& node) const;
  bool is_of_forward(const torch::autograd::Node& node) const;
  void check_stays_inside(const EdgeList& roots) const;
  [[noreturn]] void hooks_mismatch(size_t backward, size_t expected, size_t got) const;
  [[noreturn]] void roots_mismatch(size_t backward) const;
  void compare_gradients(c10::ArrayRef<at::Tensor> gradients);

  const Region& region_;
  ReplayProgress& progress_;
  const ReplayMemory& memory_;
  const TensorHooks& hooks_;
  const uint64_t thread_;      // Autograd's id of the thread.
  const uint64_t first_node_;  // Sequence number of the replay's first node.
  size_t begun_ = 0;
  size_t with_gradients_ = 0;  // Number of passes that returned gradients.
  LeafGrads leaf_grads_;
};

}  // namespace remat
