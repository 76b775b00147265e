// SPDX-License-Identifier: BSD-3-Clause

// Python's saved_tensors_hooks() and current_saved_tensor_info().
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

/// If `object` is a saved_tensors_hooks, its (pack, unpack, capture_context), as a new reference;
/// else null without an error.
PyObject* parts_of_hooks(PyObject* object);

/// Adds these to `module`. Throws python_error.
void add_saved_tensors_hooks(PyObject* module);

}  // namespace remat::python
