// SPDX-License-Identifier: BSD-3-Clause

// One named call of a Python function.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/python_headers.h>

#include <string_view>

#include <remat/tape/named_call.h>

#include "argument_tree.h"

namespace remat::python {

/// "innermost_region" or "all_regions". Throws ValueError that begins with `where`.
Keep keep_of(const char* where, std::string_view text);

/// What a call returned, taken apart. `where` begins what is thrown for a leaf that is no tensor.
/// Throws python_error too.
CallResults take_apart(PyObject* output, const NamedCall& call, const char* where);

/// The same with its tensors, new. `holder`: of the CallResults.
PyObject* put_together(const CallResults& results);

/// Throws if a leaf that requires grad is among the results and not among the arguments.
void check_no_new_leaf(const CallResults& results, c10::ArrayRef<at::Tensor> arguments,
                       const NamedCall& call, const char* where);

/// Calls `function` as `call`, or leaves it out. Returns a new reference, or null with Python's
/// error set; may throw as well.
PyObject* run_named_call(const NamedCall& call, PyObject* function, const CallArguments& arguments);

}  // namespace remat::python
