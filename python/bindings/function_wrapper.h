// SPDX-License-Identifier: BSD-3-Clause

// Python objects that stand for a function: plain C types, so that a call of one costs as little as
// Python allows.
#pragma once

#include <torch/csrc/python_headers.h>

#include <memory>

#include "argument_tree.h"

namespace remat::python {

/// What a wrapper knows beside its function. May be shared; used under the GIL.
class WrapperState {
 public:
  WrapperState() = default;
  WrapperState(const WrapperState&) = delete;
  WrapperState& operator=(const WrapperState&) = delete;
  virtual ~WrapperState() = default;

  /// Visits the Python objects that nobody but the owner of this state holds.
  virtual int traverse(visitproc /*visit*/, void* /*argument*/) const { return 0; }

  /// What __reduce__ returns; `function` may be null. New; null with Python's error set.
  virtual PyObject* reduce(PyObject* function) const = 0;

  /// Begins the repr: "checkpoint with {}". New; null with Python's error set.
  virtual PyObject* show() const = 0;
};

/// A wrapper type with attributes, names and signature of the wrapped function, as functools.wraps
/// gives them; it binds as a method, can be weakly referenced, copied and pickled. Kept for good.
/// Throws python_error.
PyTypeObject* make_wrapper_type(const char* name, const char* doc);

/// A wrapper. `function` may be null. New. Throws python_error.
PyObject* make_wrapper(PyTypeObject* type, vectorcallfunc call,
                       std::shared_ptr<const WrapperState> state, PyObject* function);

/// Of an object of a wrapper type.
const std::shared_ptr<const WrapperState>& state_of(PyObject* wrapper);
PyObject* function_of(PyObject* wrapper);

/// `make(wrapper)` makes what the attribute "_graph_key" of a wrapper is from then on: see
/// Note [In compiled code]. Once.
void set_graph_key_maker(PyObject* make);

/// The arguments of a vectorcall.
CallArguments arguments_of(PyObject* const* values, size_t flags, PyObject* keywords);

}  // namespace remat::python
