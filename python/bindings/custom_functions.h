// SPDX-License-Identifier: BSD-3-Clause

// op() and auto_forward() of Python.
#pragma once

#include <torch/csrc/python_headers.h>

#include <remat/tape/named_call.h>

#include "argument_tree.h"

namespace remat::python {

/// What the forward() of a custom function finds: the op() that calls it. On one thread.
class OpContext {
 public:
  explicit OpContext(const NamedCall* call);
  OpContext(const OpContext&) = delete;
  OpContext& operator=(const OpContext&) = delete;
  ~OpContext();

  /// The call of the op() around, null without one. It is then marked as used.
  static const NamedCall* take();

  bool used() const { return used_; }

 private:
  const NamedCall* call_;
  OpContext* outer_;
  bool used_ = false;
};

/// Calls `function` so that the forward() of the custom function in it is `call`. Returns a new
/// reference, or null with Python's error set; may throw as well.
PyObject* run_op(const NamedCall& call, PyObject* function, const CallArguments& arguments);

/// Adds auto_forward() to `module`. Throws python_error.
void add_custom_functions(PyObject* module);

}  // namespace remat::python
