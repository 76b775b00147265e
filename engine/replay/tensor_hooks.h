// SPDX-License-Identifier: BSD-3-Clause

// Restoring the hooks of tensors that exist before and after a replay.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/autograd/cpp_hook.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <remat/engine/backward_observer.h>
#include <remat/engine/region_body.h>
#include <remat/engine/torch_compat.h>

namespace remat {

/// Restores hooks on arguments and captured tensors after a replay. These tensors are in the
/// forward's graph, which already has the hooks that the function sets on them, and the replay sets
/// those hooks again. The destructor removes the replay's hooks, and restores the hooks that the
/// replay has removed. A function may replace its own hooks: if it removes as many as it sets, both
/// changes stay.
class TensorHooks {
 public:
  /// Skips tensors without gradient, and stale views: Note [When a view gets its node]. A tensor
  /// may occur twice.
  TensorHooks(c10::ArrayRef<at::Tensor> arguments, c10::ArrayRef<at::Tensor> captured,
              const RegionBody& body);
  ~TensorHooks();

  /// True if a backward from `roots` would run hooks on tensors whose hooks have changed.
  bool changed_before(const EdgeList& roots) const;

  /// True if more hooks have been removed from a tensor than were set on it.
  bool lost() const;

 private:
  struct Kept {
    size_t count = 0;                     // Number of hooks that are set.
    torch::autograd::hooks_list hooks{};  // C++ hooks, which belong to the tensor.
    NodePtr node{};                       // The tensor's grad_fn; in-place writes replace it.
    size_t of_node = 0;                   // Number of hooks on `node`.
    // Output number and retain_grad() hook of an argument, which is a new tensor in each replay.
    std::optional<size_t> output{};
    std::unique_ptr<torch::autograd::FunctionPreHook> retained{};
  };

  void keep(const at::Tensor& tensor, bool is_argument);
  static void restore(const at::Tensor& tensor, Kept& kept);

  std::vector<at::Tensor> tensors_;
  std::vector<Kept> kept_;  // One per tensor.
  std::unique_ptr<KeptHooks> of_language_;
};

}  // namespace remat
