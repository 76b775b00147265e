// SPDX-License-Identifier: BSD-3-Clause

// The .grad of leaves while a step is measured.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <memory>
#include <mutex>
#include <vector>

namespace remat {

/// While it lives leaves that have a .grad have zeros in its place; afterwards they are what they
/// were. Leaves that backward reaches and that it has not been told of have none meanwhile: what a
/// function returns as it came, weights of the loss alone. At most one in the process counts.
class GradientsApart {
 public:
  /// Adds to `leaves`, which is to live longer, the leaves that backward reaches.
  explicit GradientsApart(std::vector<at::Tensor>& leaves);
  GradientsApart(const GradientsApart&) = delete;
  GradientsApart& operator=(const GradientsApart&) = delete;
  ~GradientsApart();

 private:
  static std::unique_ptr<at::ObserverContext> before_node(const at::RecordFunction& node);
  void add(const at::Tensor& leaf);

  std::mutex mutex_;  // backward's threads add
  std::vector<at::Tensor>& leaves_;
  std::vector<at::Tensor> gradients_;
  at::CallbackHandle callback_;
};

}  // namespace remat
