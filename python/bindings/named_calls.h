// SPDX-License-Identifier: BSD-3-Clause

// How a named call of Python runs: those of region() and native_op(), and those of custom
// functions.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <torch/csrc/python_headers.h>

#include <cstdint>
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

/// Ends the handles that were opened on this thread during its lifetime and are still open, since
/// the traceback of an exception may hold them. Surrounds every call of user code in a region or
/// named call. Use under the GIL.
class HandleBound {
 public:
  HandleBound();
  HandleBound(const HandleBound&) = delete;
  HandleBound& operator=(const HandleBound&) = delete;
  ~HandleBound();

 private:
  uint64_t opened_before_;
};

}  // namespace remat::python
