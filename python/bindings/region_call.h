// SPDX-License-Identifier: BSD-3-Clause

// Runs one call of a checkpointed Python function.
#pragma once

#include <torch/csrc/python_headers.h>

#include "argument_tree.h"
#include "settings.h"

namespace remat::python {

/// Calls `function` as a region. Returns a new reference, or null with Python's error set; may
/// throw as well.
PyObject* call_region(const Settings& settings, PyObject* function, const CallArguments& arguments);

}  // namespace remat::python
