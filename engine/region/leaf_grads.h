// SPDX-License-Identifier: BSD-3-Clause

// The .grad of leaves while a replay repeats a backward.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <c10/util/FunctionRef.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/engine/backward_observer.h>
#include <remat/engine/outside_log.h>
#include <remat/engine/region.h>
#include <remat/engine/scope.h>
#include <remat/engine/torch_compat.h>

namespace remat {

/// Note [The .grad of a replay]: a function that calls backward() has accumulated into its leaves
/// in the forward. Its replay calls backward() again. Meanwhile each leaf has the .grad that it had
/// before the forward called backward(); the replay's end restores the present .grad. If the
/// forward added to a .grad in place, the earlier value is gone. Then the leaf has an undefined
/// .grad, so code that reads it differs from the forward. If a sum replaced the .grad
/// (create_graph, retain_grad()), the region has kept the earlier one.
class LeafGrads {
 public:
  explicit LeafGrads(const Region& region) : region_(region) {}
  LeafGrads(const LeafGrads&) = delete;
  LeafGrads& operator=(const LeafGrads&) = delete;
  ~LeafGrads();

  /// Sets aside the .grad of each leaf reachable from `roots`, unless that has been done.
  void set_aside(const EdgeList& roots);

  /// Sets aside the .grad that retain_grad() has given to those of `tensors` that are not leaves.
  void set_aside_retained(c10::ArrayRef<at::Tensor> tensors);

  /// Removes the retain_grad() hooks on nodes reachable from `roots`, until the destructor puts
  /// them back. Does not remove hooks of the tensors in `but`, or on nodes for which `is_own` is
  /// true.
  void take_retained(const EdgeList& roots, c10::ArrayRef<at::Tensor> but,
                     c10::function_ref<bool(const torch::autograd::Node&)> is_own);

 private:
  struct Retained {
    NodePtr node;
    size_t output;
    std::unique_ptr<torch::autograd::FunctionPreHook> hook;
  };
  void set_aside(const at::Tensor& tensor);
  at::Tensor before(const at::Tensor& tensor) const;

  const Region& region_;
  // Each leaf with its .grad.
  std::unordered_map<const c10::TensorImpl*, std::pair<at::Tensor, at::Tensor>> leaves_;
  std::vector<Retained> retained_;
};

/// Restores the .grad of captured tensors and arguments after a replay. Needed because the replay
/// sets the .grad as the forward did (w.grad = None), but other regions have added to it since.
class SetGrads {
 public:
  explicit SetGrads(const OutsideLog& outside);
  SetGrads(const SetGrads&) = delete;
  SetGrads& operator=(const SetGrads&) = delete;
  ~SetGrads();

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> grads_;
  // False if the function sets no .grad. Then a .grad that was undefined before the replay stays as
  // it is, because another thread may have set it.
  bool sets_new_;
};

}  // namespace remat
