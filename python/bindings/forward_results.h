// SPDX-License-Identifier: BSD-3-Clause

// What the forward() of a custom autograd function did to its ctx, and doing it again.
#pragma once

#include <torch/csrc/python_headers.h>

#include <string>
#include <vector>

#include <remat/backend/named_call_scope.h>
#include <remat/tape/named_call.h>

namespace remat::python {

/// The tensors among the arguments of the forward() that Python runs now, if `ctx` is the first of
/// them; else none. Throws python_error.
std::vector<at::Tensor> tensors_of_forward(PyObject* ctx);

/// ctx.save_for_backward(*tensors.values()) of a dict {name: Tensor or None}. Returns the tensors,
/// undefined for None, and their names. Throws ValueError for an empty name, RuntimeError for one
/// with a dot and for other values, python_error.
struct NamedTensors {
  std::vector<std::string> names;
  std::vector<at::Tensor> tensors;
};
NamedTensors save_named(PyObject* ctx, PyObject* named, const std::string& where);

/// What ctx.save_for_backward() was given, undefined for None.
std::vector<at::Tensor> saved_by(PyObject* ctx);

/// Whether autograd saves it now. Holds no reference to `ctx`, and needs no GIL.
SavingState saving_of(PyObject* ctx);

/// Adds to `results` which of its tensors were marked as dirty or as not differentiable in `ctx`.
void add_marks(CallResults& results, PyObject* ctx);

/// Marks them so in `ctx`, and returns what forward() returned, new. `results`: with marks.
PyObject* load_marked(const CallResults& results, PyObject* ctx);

}  // namespace remat::python
