// SPDX-License-Identifier: BSD-3-Clause

// Reading and setting context variables, default device and compiler.
#include "python_state.h"

#include <c10/core/SafePyObject.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include "owned_object.h"

namespace remat::python {
namespace {

using at::impl::PythonTorchFunctionTLS;

PyObject* check(PyObject* made) {
  if (!made) throw python_error();
  return made;
}

PyObject* import(const char* module, const char* name) {
  THPObjectPtr found(check(PyImport_ImportModule(module)));
  return check(PyObject_GetAttrString(found, name));
}

PyObject* device_context_class() {
  static PyObject* const found = import("torch.utils._device", "DeviceContext");
  return found;
}

/// The device of the innermost default-device mode, new; null without one.
PyObject* default_device() {
  for (int64_t i = PythonTorchFunctionTLS::stack_len() - 1; i >= 0; --i) {
    PyObject* const mode = PythonTorchFunctionTLS::get_stack_at(i)->ptr(getPyInterpreter());
    const int is_device = PyObject_IsInstance(mode, device_context_class());
    if (is_device < 0) throw python_error();
    if (is_device) return check(PyObject_GetAttrString(mode, "device"));
  }
  return nullptr;
}

/// set_eval_frame() of torch's compiler, once that has been loaded; else null.
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
    : context_(check(PyContext_CopyCurrent())),
      device_(nullptr),
      torch_function_(PythonTorchFunctionTLS::get_disabled_state()) {
  try {
    device_ = default_device();
  } catch (...) {
    Py_DECREF(context_);
    throw;
  }
}

PythonState::~PythonState() {
  Py_DECREF(context_);
  Py_XDECREF(device_);
}

PythonStateScope::PythonStateScope(const PythonState& state)
    : torch_function_(PythonTorchFunctionTLS::get_disabled_state()) {
  // A context can be entered by one thread at a time, and must serve the next replay as it is.
  THPObjectPtr context(check(PyContext_Copy(state.context_)));
  if (state.device_) {
    device_mode_ = check(PyObject_CallOneArg(device_context_class(), state.device_));
    THPObjectPtr entered(PyObject_CallMethod(device_mode_, "__enter__", nullptr));
    if (!entered) Py_CLEAR(device_mode_);
    check(entered);
  }
  if (PyContext_Enter(context) < 0) throw python_error();
  context_ = context.release();
  PythonTorchFunctionTLS::set_disabled_state(state.torch_function_);
}

PythonStateScope::~PythonStateScope() {
  PythonTorchFunctionTLS::set_disabled_state(torch_function_);
  const ErrorAside error;
  if (context_ && PyContext_Exit(context_) < 0) PyErr_WriteUnraisable(context_);
  Py_XDECREF(context_);
  if (!device_mode_) return;
  PyObject* const left =
      PyObject_CallMethod(device_mode_, "__exit__", "OOO", Py_None, Py_None, Py_None);
  if (!left) PyErr_WriteUnraisable(device_mode_);
  Py_XDECREF(left);
  Py_DECREF(device_mode_);
}

CompilerAside::CompilerAside() {
  PyObject* const function = set_eval_frame();
  if (!function) return;
  prior_ = check(PyObject_CallOneArg(function, Py_None));
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
