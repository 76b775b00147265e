// SPDX-License-Identifier: BSD-3-Clause

// The .grad of leaves during a backward that a replay runs a second time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <c10/util/FunctionRef.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include <remat/tape/backward_observer.h>
#include <remat/tape/outside_log.h>
#include <remat/tape/region.h>
#include <remat/tape/scope.h>
#include <remat/tape/torch_compat.h>

namespace remat {

/// Note [The .grad of a replay]: a function that calls backward() has accumulated into its leaves
/// in the forward. Its replay calls backward() again; this gives each leaf the .grad that it had
/// before for that time, and puts the real one back when the replay ends. A .grad that the forward
/// has added to in place is not there any more: an empty one stands for it, and who reads it finds
/// another tensor than in the forward. One that was replaced by a sum (create_graph, retain_grad())
/// is kept by the region.
class LeafGrads {
 public:
  explicit LeafGrads(const Region& region) : region_(region) {}
  LeafGrads(const LeafGrads&) = delete;
  LeafGrads& operator=(const LeafGrads&) = delete;
  ~LeafGrads();

  /// Takes the .grad of each leaf that can be reached from `roots`, if it has not been taken
  /// already.
  void set_aside(const EdgeList& roots);

  /// The same for those of `tensors` that are no leaves: retain_grad() gives them a .grad too.
  void set_aside_retained(c10::ArrayRef<at::Tensor> tensors);

  /// Takes away what fills the .grad of others that can be reached: nodes that `is_own` are left.
  void take_retained(const EdgeList& roots, c10::ArrayRef<at::Tensor> but,
                     c10::function_ref<bool(const torch::autograd::Node&)> is_own);

 private:
  struct Leaf {
    at::Tensor tensor;
    at::Tensor grad;
  };
  struct Retained {
    NodePtr node;
    size_t output;
    std::unique_ptr<torch::autograd::FunctionPreHook> hook;
  };
  void set_aside(const at::Tensor& tensor);
  at::Tensor before(const at::Tensor& tensor) const;

  const Region& region_;
  std::unordered_map<const c10::TensorImpl*, Leaf> leaves_;
  std::vector<Retained> retained_;
};

/// The .grad of captured tensors and of arguments while a replay runs: what its function sets there
/// (w.grad = None) it has set in the forward, and other regions have added to it since.
class SetGrads {
 public:
  explicit SetGrads(const OutsideLog& outside);
  SetGrads(const SetGrads&) = delete;
  SetGrads& operator=(const SetGrads&) = delete;
  ~SetGrads();

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<at::Tensor> grads_;
  bool sets_new_;  // another thread may be the one that adds to an empty .grad
};

}  // namespace remat
