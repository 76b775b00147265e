// SPDX-License-Identifier: BSD-3-Clause

// Python's region(), native_op(), recompute_needs_tensor() and name_scope().
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/python_headers.h>

#include <string_view>

#include <remat/engine/named_call.h>

#include "argument_tree.h"

namespace remat::python {

/// Parses "innermost_region" or "all_regions". Throws ValueError that begins with `where`.
Keep keep_of(const char* where, std::string_view text);

/// Takes the result of a call apart. Throws for a leaf that is no tensor, with `where` at the start
/// of the message, and python_error.
CallResults take_apart(PyObject* output, const NamedCall& call, const char* where);

/// Returns the result with its tensors, as a new reference. `results` must come from take_apart().
PyObject* put_together(const CallResults& results);

/// Throws if a result is a leaf that requires grad and is not an argument.
void check_no_new_leaf(const CallResults& results, c10::ArrayRef<at::Tensor> arguments,
                       const NamedCall& call, const char* where);

/// Calls `function` as `call`, or leaves it out. Returns a new reference, or null with Python's
/// error set; may throw as well.
PyObject* run_named_call(const NamedCall& call, PyObject* function, const CallArguments& arguments);

/// Adds these functions to `module`. Throws python_error.
void add_named_calls(PyObject* module);

}  // namespace remat::python
