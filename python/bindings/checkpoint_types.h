// SPDX-License-Identifier: BSD-3-Clause

// checkpoint(options)(fn)(args...) as Python types.
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

/// Adds checkpoint(), the types of its first and second result, and the helpers for pickle. Throws
/// python_error.
void add_checkpoint(PyObject* module);

}  // namespace remat::python
