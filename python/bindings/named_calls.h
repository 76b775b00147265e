// SPDX-License-Identifier: BSD-3-Clause

// Runs named calls of Python: those of region() and native_op(), and those of custom functions.
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

/// Separates the tensors of a call's result from its structure. Throws python_error, and an error
/// that begins with `where` for a leaf that is neither a tensor nor None.
CallResults take_apart(PyObject* output, const NamedCall& call, const char* where);

/// Rebuilds the Python object from `results` of take_apart(). Returns a new reference.
PyObject* put_together(const CallResults& results);

/// Throws if a result is a leaf that requires grad and is not an argument.
void check_no_new_leaf(const CallResults& results, c10::ArrayRef<at::Tensor> arguments,
                       const NamedCall& call, const char* where);

/// Runs `function` as the named call `call`, or returns the kept results in the replay of a SAVE
/// call. The result is a new reference, or null with Python's error set; may throw as well.
PyObject* run_named_call(const NamedCall& call, PyObject* function, const CallArguments& arguments);

/// Tells the forward() of a custom function which op() calls it. OpContexts form a stack per
/// thread.
class OpContext {
 public:
  explicit OpContext(const NamedCall* call);
  OpContext(const OpContext&) = delete;
  OpContext& operator=(const OpContext&) = delete;
  ~OpContext();

  /// Returns the call of the surrounding op(), which is then marked as used; null without an op().
  static const NamedCall* take();

  bool used() const { return used_; }

 private:
  const NamedCall* call_;
  OpContext* outer_;
  bool used_ = false;
};

/// Calls `function`, which calls a custom function whose forward() becomes the named call `call`.
/// Returns a new reference, or null with Python's error set; may throw as well.
PyObject* run_op(const NamedCall& call, PyObject* function, const CallArguments& arguments);

/// Surrounds every call of user code in a region or named call. Its destructor ends the handles
/// (see get_handle()) that this thread opened during its lifetime and that are still open, for
/// example because an exception's traceback holds them. Use under the GIL.
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
