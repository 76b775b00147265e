// SPDX-License-Identifier: BSD-3-Clause

// What torch.compile is to trace in place of calls that are C, and what it asks of policies.
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

/// Note [In compiled code]: Dynamo looks a call of an object up in the dict of its type, and traces
/// what it finds if that is a Python function; Python itself calls the type's slot. So the dicts of
/// our types have Python functions for the compiler, and calls outside of it go on in C. What such
/// a function must know of an object is in its attribute "_graph_key", a string, which _compile.py
/// makes when somebody asks for it first: Dynamo guards strings by their value, so code that has
/// been compiled for one policy does not serve another.
///
/// Adds what _compile.py uses. Throws python_error.
void add_in_graph(PyObject* module);

}  // namespace remat::python
