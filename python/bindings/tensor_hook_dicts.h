// SPDX-License-Identifier: BSD-3-Clause

// The Python hooks that a function sets on tensors which outlive its replay.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/utils/object_ptr.h>

#include <utility>
#include <vector>

namespace remat::python {

/// Takes back, when destroyed, the hooks that a replay has added to the dicts in which torch keeps
/// those of a tensor. Made and destroyed under the GIL.
class TensorHookDicts {
 public:
  /// May be called for several lists; a tensor may come twice. Leaves out what has no gradient.
  void watch(c10::ArrayRef<at::Tensor> tensors);

  TensorHookDicts() = default;
  TensorHookDicts(const TensorHookDicts&) = delete;
  TensorHookDicts& operator=(const TensorHookDicts&) = delete;
  ~TensorHookDicts();

 private:
  void add(PyObject* hooks);

  std::vector<std::pair<THPObjectPtr, THPObjectPtr>> dicts_;  // and what was in them
};

}  // namespace remat::python
