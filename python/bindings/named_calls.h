// SPDX-License-Identifier: BSD-3-Clause

// region(), native_op(), recompute_needs_tensor() and name_scope() of Python.
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

/// Adds them to `module`. Throws python_error.
void add_named_calls(PyObject* module);

}  // namespace remat::python
