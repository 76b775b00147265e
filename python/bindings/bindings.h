// SPDX-License-Identifier: BSD-3-Clause

// Functions by which module.cpp builds the extension module. Each add_...() adds functions and
// types to `module`, and throws python_error if that fails.
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

/// Replaces the functions with which users begin, such as checkpoint(), by entries: see Note [First
/// use]. Adds _make_entry(function), which makes an entry of a Python function.
void add_entries(PyObject* module);

/// Lets scopes find the inner tensors of a tensor subclass: the tensors that its __tensor_flatten__
/// names or, without that method, the tensors in its attributes and __slots__, and in lists, tuples
/// and dicts there.
void install_tensor_classes();

/// Lets recorders find the line of Python code that runs an op.
void find_python_places();

}  // namespace remat::python
