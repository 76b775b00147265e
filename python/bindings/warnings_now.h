// SPDX-License-Identifier: BSD-3-Clause

// Warnings of LibTorch that Python turns into errors.
#pragma once

#include <torch/csrc/Exceptions.h>

#include <utility>

namespace remat::python {

/// Calls `fn`, and raises there and then what a warning filter makes of its warnings: at the end of
/// the binding, where they would wait, what the binding returns is lost. Throws what `fn` throws
/// and python_error; under the GIL.
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
