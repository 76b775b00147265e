// SPDX-License-Identifier: BSD-3-Clause

// Setting aside the .grad of leaves while a step is measured.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <memory>
#include <mutex>
#include <vector>

namespace remat {

/// While alive, replaces the .grad of leaves by zeros; restores it when destroyed. Leaves that
/// backward reaches but that were not given have no .grad meanwhile: those that a function returns
/// unchanged, and weights that only the loss uses. Only one object in the process is active at a
/// time.
class GradientsApart {
 public:
  /// Adds to `leaves`, which must outlive this object, the leaves that backward reaches.
  explicit GradientsApart(std::vector<at::Tensor>& leaves);
  GradientsApart(const GradientsApart&) = delete;
  GradientsApart& operator=(const GradientsApart&) = delete;
  ~GradientsApart();

 private:
  static std::unique_ptr<at::ObserverContext> before_node(const at::RecordFunction& node);
  void add(const at::Tensor& leaf);

  std::mutex mutex_;  // backward's threads call add()
  std::vector<at::Tensor>& leaves_;
  std::vector<at::Tensor> gradients_;
  at::CallbackHandle callback_;
};

}  // namespace remat
