// SPDX-License-Identifier: BSD-3-Clause

// Keeps the Python hooks of tensors that outlive a replay.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <remat/tape/region_body.h>
#include <torch/csrc/utils/pybind.h>

#include <vector>

namespace remat::python {

/// Lets remat count the hooks in a dict: see count_hooks(). Call once.
void count_hooks_in_dicts();

/// torch keeps the hooks of a tensor in two dicts, which LibTorch sees as one hook each. Construct
/// under the GIL.
class TensorHookDicts final : public KeptHooks {
 public:
  explicit TensorHookDicts(c10::ArrayRef<at::Tensor> tensors);
  ~TensorHookDicts() override;

  void append_changed(std::vector<at::Tensor>& changed) const override;
  bool lost() const override;

 private:
  struct [[gnu::visibility("hidden")]] Kept {
    at::Tensor tensor;
    pybind11::object gradient;     // a copy of the dict of gradient hooks; null if there was none
    pybind11::object accumulated;  // likewise for register_post_accumulate_grad_hook
  };

  /// Calls `visit(hooks, before)` for both dicts of the tensor; either may be null.
  template <class Visit>
  static void visit_dicts(const Kept& kept, Visit&& visit);

  std::vector<Kept> kept_;
};

}  // namespace remat::python
