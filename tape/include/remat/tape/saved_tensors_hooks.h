// SPDX-License-Identifier: BSD-3-Clause

// Pairs of functions that decide how autograd keeps a saved tensor:
// torch.autograd.graph.saved_tensors_hooks for C++.
#pragma once

#include <ATen/core/Tensor.h>

#include <any>
#include <functional>
#include <memory>
#include <utility>

#include <remat/tape/export.h>
#include <remat/tape/saved_tensor_frame.h>

namespace remat {

/// `pack` gets each tensor that autograd saves (detached, sharing its data) and returns what to
/// keep instead; `unpack` gets that back and returns the tensor: same shape, dtype and device, else
/// an error names both. Both run with gradients off unless backward builds a graph, and without any
/// region active; `unpack` may run on another thread, and more than once.
struct SavedTensorsHooks {
  std::function<std::any(const at::Tensor&)> pack;
  std::function<at::Tensor(const std::any&)> unpack;
};

/// Checks that both functions are there. Throws ValueError that begins with `where`.
REMAT_API void check_saved_tensors_hooks(const SavedTensorsHooks& hooks, const char* where);

/// The scope of a pair of hooks. A replay does not call them again: what it saves under them serves
/// only its own graph.
class REMAT_API UserHooksFrame final : public SavedTensorFrame {
 public:
  explicit UserHooksFrame(std::shared_ptr<const SavedTensorsHooks> hooks)
      : hooks_(std::move(hooks)) {}
  std::unique_ptr<torch::autograd::SavedVariableHooks> make_hooks() override;
  bool is_user_hooks() const override { return true; }

 private:
  std::shared_ptr<const SavedTensorsHooks> hooks_;
};

}  // namespace remat
