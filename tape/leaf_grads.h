// SPDX-License-Identifier: BSD-3-Clause

// The .grad of leaves during a backward that a replay runs a second time.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <unordered_map>

#include <remat/tape/saved_tensor_frame.h>

namespace remat {

/// A function that calls backward() has accumulated into its leaves in the forward. Its replay
/// calls backward() again; this gives each leaf an empty .grad for that time and puts the real one
/// back when the replay ends.
class LeafGrads {
 public:
  LeafGrads() = default;
  LeafGrads(const LeafGrads&) = delete;
  LeafGrads& operator=(const LeafGrads&) = delete;
  ~LeafGrads();

  /// Takes the .grad of each leaf that can be reached from `roots`, if it has not been taken
  /// already.
  void set_aside(const EdgeList& roots);

  /// The same for those of `tensors` that are no leaves: retain_grad() gives them a .grad too.
  void set_aside_retained(c10::ArrayRef<at::Tensor> tensors);

 private:
  struct Leaf {
    at::Tensor tensor;
    at::Tensor grad;
  };
  void set_aside(const at::Tensor& tensor);

  std::unordered_map<const c10::TensorImpl*, Leaf> leaves_;
};

}  // namespace remat
