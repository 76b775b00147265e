// SPDX-License-Identifier: BSD-3-Clause

// One named call of a Python function.
#pragma once

#include <torch/csrc/python_headers.h>

#include <remat/tape/named_call.h>

#include "argument_tree.h"

namespace remat::python {

/// Calls `function` as `call`, or leaves it out. Returns a new reference, or null with Python's
/// error set; may throw as well.
PyObject* run_named_call(const NamedCall& call, PyObject* function, const CallArguments& arguments);

}  // namespace remat::python
