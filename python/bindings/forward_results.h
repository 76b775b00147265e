// SPDX-License-Identifier: BSD-3-Clause

// Reads what the forward() of a custom autograd function did to its ctx, and repeats it.
#pragma once

#include <torch/csrc/python_headers.h>

#include <string>
#include <vector>

#include <remat/backend/named_call_scope.h>
#include <remat/tape/named_call.h>

namespace remat::python {

/// The tensors among the arguments of the forward() that Python is running, if `ctx` is its first
/// argument; else none. Throws python_error.
std::vector<at::Tensor> tensors_of_forward(PyObject* ctx);

/// Calls ctx.save_for_backward(*tensors.values()) for a dict {name: Tensor or None}. Returns the
/// tensors, undefined for None, and their names. Throws ValueError for an empty name, RuntimeError
/// for a name with a dot and for other values, python_error.
struct NamedTensors {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
};
NamedTensors save_named(PyObject* ctx, PyObject* named, const std::string& where);

/// The tensors given to ctx.save_for_backward(), undefined for None.
std::vector<at::Tensor> saved_by(PyObject* ctx);

/// Whether autograd is saving the ctx's tensors now. Holds no reference to `ctx` and needs no GIL.
SavingState saving_of(PyObject* ctx);

/// Adds to `results` which of its tensors `ctx` has marked as dirty or as not differentiable.
void add_marks(CallResults& results, PyObject* ctx);

/// Repeats the marks of `results` on `ctx`. Returns what forward() returned, as a new reference.
PyObject* load_marked(const CallResults& results, PyObject* ctx);

}  // namespace remat::python
