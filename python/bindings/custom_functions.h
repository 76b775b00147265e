// SPDX-License-Identifier: BSD-3-Clause

// Python's op() and auto_forward().
#pragma once

#include <torch/csrc/python_headers.h>

#include <remat/engine/named_call.h>

#include "argument_tree.h"

namespace remat::python {

/// Tells the forward() of a custom function which op() calls it. A stack per thread.
class OpContext {
 public:
  explicit OpContext(const NamedCall* call);
  OpContext(const OpContext&) = delete;
  OpContext& operator=(const OpContext&) = delete;
  ~OpContext();

  /// The call of the surrounding op(), which is then marked as used; null if there is none.
  static const NamedCall* take();

  bool used() const { return used_; }

 private:
  const NamedCall* call_;
  OpContext* outer_;
  bool used_ = false;
};

/// Calls `function` so that the forward() of the custom function in it becomes `call`. Returns a
/// new reference, or null with Python's error set; may throw as well.
PyObject* run_op(const NamedCall& call, PyObject* function, const CallArguments& arguments);

/// Adds auto_forward() to `module`. Throws python_error.
void add_custom_functions(PyObject* module);

}  // namespace remat::python
