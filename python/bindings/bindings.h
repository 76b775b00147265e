// SPDX-License-Identifier: BSD-3-Clause

// The parts of the extension module that only module.cpp knows. Each add_...() adds its functions
// and types to the module, and throws python_error.
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

void add_budget(PyObject* module);
void add_checkpoint(PyObject* module);
void add_compiled_graph(PyObject* module);
void add_custom_functions(PyObject* module);
void add_in_graph(PyObject* module);
void add_named_calls(PyObject* module);
void add_offload(PyObject* module);
void add_ranks(PyObject* module);
void add_remat_handle(PyObject* module);
void add_reports(PyObject* module);
void add_saved_tensors_hooks(PyObject* module);

/// Makes the functions of the module that users call entries, and adds _make_entry(function), which
/// does this for functions of Python: see Note [First use].
void add_entries(PyObject* module);

/// Tells scopes which tensors a tensor of a Python class consists of: those that its
/// __tensor_flatten__ names; for a class without that, the tensors among its attributes and slots,
/// and in lists, tuples and dicts there.
void install_tensor_classes();

/// Makes Python's source places available to recorders.
void find_python_places();

}  // namespace remat::python
