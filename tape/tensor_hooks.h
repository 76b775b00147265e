// SPDX-License-Identifier: BSD-3-Clause

// The hooks that a function sets on tensors which outlive its replay.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <vector>

namespace remat {

/// Takes back, when destroyed, the hooks that a replay has set on arguments and captured tensors:
/// they stand in the graph of the forward, which has them already. Hooks of Python are entries of a
/// dict that LibTorch sees as one hook: RegionBody::run() takes those back.
class TensorHooks {
 public:
  /// May be called for several lists; a tensor may come twice. Leaves out what has no gradient,
  /// and stale views: Note [When a view gets its node].
  void watch(c10::ArrayRef<at::Tensor> tensors);

  TensorHooks() = default;
  TensorHooks(const TensorHooks&) = delete;
  TensorHooks& operator=(const TensorHooks&) = delete;
  ~TensorHooks();

 private:
  struct Watched {
    at::Tensor tensor;
    size_t of_tensor;  // in the list of C++ hooks that goes with the tensor
    size_t of_node;    // of the op that made it
  };

  std::vector<Watched> watched_;
};

}  // namespace remat
