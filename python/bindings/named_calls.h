// SPDX-License-Identifier: BSD-3-Clause

// Python's region(), native_op(), recompute_needs_tensor() and name_scope().
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

/// Adds these functions to `module`. Throws python_error.
void add_named_calls(PyObject* module);

}  // namespace remat::python
