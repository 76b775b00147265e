// SPDX-License-Identifier: BSD-3-Clause

// The hooks of tensors that outlive a replay.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/autograd/cpp_hook.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include <remat/tape/backward_observer.h>
#include <remat/tape/region_body.h>
#include <remat/tape/scope.h>
#include <remat/tape/torch_compat.h>

namespace remat {

/// Arguments and captured tensors stand in the graph of the forward, which has the hooks that the
/// function sets on them; its replay sets them again. When destroyed, this takes those back, and
/// gives the tensors the hooks again that the replay has taken away. A function may replace its own
/// hooks: where as many are removed as are set, both stay so.
class TensorHooks {
 public:
  /// Leaves out what has no gradient, and stale views: Note [When a view gets its node]. A tensor
  /// may come twice.
  TensorHooks(c10::ArrayRef<at::Tensor> arguments, c10::ArrayRef<at::Tensor> captured,
              const RegionBody& body);
  TensorHooks(const TensorHooks&) = delete;
  TensorHooks& operator=(const TensorHooks&) = delete;
  ~TensorHooks();

  /// True if a backward from `roots` would pass hooks of which there are other ones now.
  bool changed_before(const EdgeList& roots) const;

  /// True if more have been removed from a tensor than were set on it.
  bool lost() const;

 private:
  struct Kept {
    size_t count = 0;                     // of those that have not been removed
    torch::autograd::hooks_list hooks{};  // of C++, which go with the tensor
    NodePtr node{};                       // that made it; a write in place gives it another one
    size_t of_node = 0;                   // hooks of all that go with that
    // Of an argument, which is another tensor than in the forward: what retain_grad() has left
    // there.
    std::optional<size_t> output{};
    std::unique_ptr<torch::autograd::FunctionPreHook> retained{};
  };

  void keep(const at::Tensor& tensor, bool is_argument);
  static void restore(const at::Tensor& tensor, Kept& kept);

  std::vector<at::Tensor> tensors_;
  std::vector<Kept> kept_;  // per tensor
  std::unique_ptr<KeptHooks> of_language_;
};

}  // namespace remat
