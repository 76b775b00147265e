// SPDX-License-Identifier: BSD-3-Clause

// Reads and sets context variables, function modes and the compiler.
#include "python_state.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include "errors.h"
#include "functional_call.h"
#include "owned_object.h"

namespace remat::python {
namespace {

using at::impl::PythonTorchFunctionTLS;

PyObject* import(const char* module, const char* name) {
  THPObjectPtr found(checked(PyImport_ImportModule(module)));
  return checked(PyObject_GetAttrString(found, name));
}

/// The dict of the module that has CURRENT_DEVICE, which torch's compiler guards on.
PyObject* device_globals() {
  static PyObject* found = nullptr;  // Note [Imports and the GIL]
  if (!found) found = import("torch.utils._device", "__dict__");
  return found;
}

PyObject* current_device_name() {
  static PyObject* const name = checked(PyUnicode_InternFromString("CURRENT_DEVICE"));
  return name;
}

/// Returns a new reference.
PyObject* current_device() {
  PyObject* const device = PyDict_GetItemWithError(device_globals(), current_device_name());
  return Py_NewRef(device ? device : Py_None);
}

void set_current_device(PyObject* device) {
  if (PyDict_SetItem(device_globals(), current_device_name(), device) < 0) PyErr_Clear();
}

/// The compiler's set_eval_frame() if torch's compiler has been loaded; else null.
PyObject* set_eval_frame() {
  static PyObject* const name = PyUnicode_InternFromString("torch._dynamo.eval_frame");
  static PyObject* function = nullptr;
  if (function) return function;
  if (!PyDict_GetItemWithError(PyImport_GetModuleDict(), name)) {
    if (PyErr_Occurred()) throw python_error();
    return nullptr;
  }
  function = import("torch._C._dynamo.eval_frame", "set_eval_frame");
  return function;
}

}  // namespace

PythonState::PythonState()
    : context_(checked(PyContext_CopyCurrent())),
      functional_calls_(nullptr),
      device_(nullptr),
      torch_function_(PythonTorchFunctionTLS::get_state()) {
  try {
    functional_calls_ = open_functional_calls();
    device_ = current_device();
  } catch (...) {
    Py_DECREF(context_);
    Py_XDECREF(functional_calls_);
    throw;
  }
}

PythonState::~PythonState() {
  Py_DECREF(context_);
  Py_XDECREF(functional_calls_);
  Py_XDECREF(device_);
}

PythonStateScope::PythonStateScope(const PythonState& state)
    : torch_function_(PythonTorchFunctionTLS::get_state()) {
  // A context can be entered by one thread at a time, and must stay unchanged for the next replay.
  THPObjectPtr context(checked(PyContext_Copy(state.context_)));
  if (state.functional_calls_) functional_calls_ = enter_functional_calls(state.functional_calls_);
  if (PyContext_Enter(context) < 0) {
    leave_functional_calls(functional_calls_);
    throw python_error();
  }
  context_ = context.release();
  device_ = current_device();
  if (device_ == state.device_) Py_CLEAR(device_);
  if (device_) set_current_device(state.device_);
  PythonTorchFunctionTLS::set_state(state.torch_function_);
}

PythonStateScope::~PythonStateScope() {
  PythonTorchFunctionTLS::set_state(torch_function_);
  const ErrorAside error;
  if (device_) set_current_device(device_);
  Py_XDECREF(device_);
  if (context_ && PyContext_Exit(context_) < 0) PyErr_WriteUnraisable(context_);
  Py_XDECREF(context_);
  leave_functional_calls(functional_calls_);
}

CompilerAside::CompilerAside() {
  PyObject* const function = set_eval_frame();
  if (!function) return;
  prior_ = checked(PyObject_CallOneArg(function, Py_None));
  if (prior_ == Py_None) Py_CLEAR(prior_);
}

CompilerAside::~CompilerAside() {
  if (!prior_) return;
  const ErrorAside error;
  PyObject* const result = PyObject_CallOneArg(set_eval_frame(), prior_);
  if (!result) PyErr_WriteUnraisable(prior_);
  Py_XDECREF(result);
  Py_DECREF(prior_);
}

}  // namespace remat::python
