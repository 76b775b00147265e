// SPDX-License-Identifier: BSD-3-Clause

// Python objects that wrap a function. Their types are written in C, so that a call costs as little
// as Python allows.
#pragma once

#include <torch/csrc/python_headers.h>

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <memory>

#include "argument_tree.h"

namespace remat::python {

/// The state of a wrapper, without its function. Wrappers may share it. Use under the GIL.
class WrapperState {
 public:
  WrapperState() = default;
  WrapperState(const WrapperState&) = delete;
  WrapperState& operator=(const WrapperState&) = delete;
  virtual ~WrapperState() = default;

  /// Visits the state's Python objects for garbage collection. Called if one wrapper owns the
  /// state.
  virtual int traverse(visitproc /*visit*/, void* /*argument*/) const { return 0; }

  /// The result of __reduce__, as a new reference; null with Python's error set. `function` may be
  /// null. By default a wrapper cannot be pickled.
  virtual PyObject* reduce(PyObject* function) const {
    return PyErr_Format(PyExc_TypeError, "cannot pickle %R", function);
  }

  /// The start of the repr, such as "checkpoint with {}", as a new reference; null with Python's
  /// error set.
  virtual PyObject* show() const { return PyUnicode_FromString("remat_meta"); }
};

/// Creates a wrapper type and adds it to `module`. Its objects have the attributes, names and
/// signature of the wrapped function, as with functools.wraps; they bind as methods if `binds`, and
/// can be weakly referenced, and pickled and copied if WrapperState::reduce() or an importable name
/// allows it. Never freed. Throws python_error.
PyTypeObject* add_wrapper_type(PyObject* module, const char* name, const char* doc,
                               bool binds = true);

/// Returns a wrapper, as a new reference. `function` may be null. Throws python_error.
PyObject* make_wrapper(PyTypeObject* type, vectorcallfunc call,
                       std::shared_ptr<const WrapperState> state, PyObject* function);

/// The state and the function of a wrapper. The function is borrowed, and may be null.
const std::shared_ptr<const WrapperState>& state_of(PyObject* wrapper);
PyObject* function_of(PyObject* wrapper);

/// Sets the function that makes a wrapper's attribute "_graph_key" when it is first read: see Note
/// [In compiled code]. Call once.
void set_graph_key_maker(PyObject* make);

CallArguments arguments_of(PyObject* const* values, size_t flags, PyObject* keywords);

/// The vectorcall function of wrappers that have a State and a function: returns
/// run(state, function, arguments). Keeps both alive meanwhile.
template <class State, auto run>
PyObject* call_wrapped(PyObject* object, PyObject* const* values, size_t flags,
                       PyObject* keywords) {
  HANDLE_TH_ERRORS
  const std::shared_ptr<const WrapperState> state = state_of(object);
  THPObjectPtr function(Py_XNewRef(function_of(object)));
  TORCH_CHECK(state && function, "[remat_meta] this object has been cleared");
  return run(static_cast<const State&>(*state), function, arguments_of(values, flags, keywords));
  END_HANDLE_TH_ERRORS
}

}  // namespace remat::python
