// SPDX-License-Identifier: BSD-3-Clause

// Python functions that torch.compile traces in place of C calls, and the policy queries they make.
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

/// Note [In compiled code]: when Dynamo traces a call of an object, it looks the call up in the
/// dict of the object's type, and traces what it finds if that is a Python function; Python itself
/// calls the type's slot. So the dicts of our types have Python functions for the compiler, and
/// calls outside of compiled code stay in C. Such a function finds what it must know of an object
/// in the object's attribute "_graph_key", a string, which _compile.py makes on first access.
/// Dynamo guards strings by their value, so code that was compiled for one policy does not serve
/// another.
///
/// Adds the functions that _compile.py uses. Throws python_error.
void add_in_graph(PyObject* module);

}  // namespace remat::python
