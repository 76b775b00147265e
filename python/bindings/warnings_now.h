// SPDX-License-Identifier: BSD-3-Clause

// Raises LibTorch's warnings as Python errors where they occur.
#pragma once

#include <torch/csrc/Exceptions.h>

#include <utility>

namespace remat::python {

/// Calls `fn` and immediately raises the errors that warning filters make of its warnings. At the
/// end of the binding, where they would be raised otherwise, the binding's result would be lost.
/// Throws python_error and what `fn` throws. Call under the GIL.
template <class Fn>
void with_warnings_now(Fn&& fn) {
  torch::PyWarningHandler warnings;
  try {
    std::forward<Fn>(fn)();
  } catch (...) {
    warnings.set_in_exception();
    throw;
  }
}

}  // namespace remat::python
