// SPDX-License-Identifier: BSD-3-Clause

// Reads and sets context variables, function modes, swapped parameters and the compiler.
#include "python_state.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include "errors.h"
#include "owned_object.h"

namespace remat::python {
namespace {

// Note [functional_call]: torch.func.functional_call swaps a module's parameters while it runs, and
// restores them before backward. So the replay of a region inside the call swaps in the tensors of
// the forward again. _functional.py reports the calls that are open on a thread.

thread_local PyObject* functional_calls =
    nullptr;  // a list, created by the first call and never freed

void push_functional_call(const py::object& call) {
  if (!functional_calls) functional_calls = checked(PyList_New(0));
  if (PyList_Append(functional_calls, call.ptr()) < 0) throw python_error();
}

void pop_functional_call() {
  const Py_ssize_t size = functional_calls ? PyList_GET_SIZE(functional_calls) : 0;
  if (size > 0 && PyList_SetSlice(functional_calls, size - 1, size, nullptr) < 0)
    throw python_error();
}

/// Returns a new tuple of the open calls, the outermost first; null if there are none.
PyObject* open_functional_calls() {
  if (!functional_calls || PyList_GET_SIZE(functional_calls) == 0) return nullptr;
  return checked(PyList_AsTuple(functional_calls));
}

/// Swaps the tensors into the modules again. Returns the argument for leave_functional_calls().
PyObject* enter_functional_calls(PyObject* calls) {
  THPObjectPtr module(checked(PyImport_ImportModule("remat_meta._functional")));
  return checked(PyObject_CallMethod(module, "enter", "(O)", calls));
}

/// Restores the modules' own tensors; `entered` may be null. Leaves no error set.
void leave_functional_calls(PyObject* entered) {
  if (!entered) return;
  PyObject* const left = PyObject_CallMethod(entered, "close", nullptr);
  if (!left) PyErr_WriteUnraisable(entered);
  Py_XDECREF(left);
  Py_DECREF(entered);
}

using at::impl::PythonTorchFunctionTLS;

/// Returns the dict that has CURRENT_DEVICE, a variable on which torch's compiler guards.
PyObject* device_globals() {
  static PyObject* found = nullptr;  // Note [Imports and the GIL]
  if (!found) found = imported("torch.utils._device", "__dict__");
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

/// Returns the compiler's set_eval_frame(); null if torch's compiler has not been loaded.
PyObject* set_eval_frame() {
  static PyObject* const name = PyUnicode_InternFromString("torch._dynamo.eval_frame");
  static PyObject* function = nullptr;
  if (function) return function;
  if (!PyDict_GetItemWithError(PyImport_GetModuleDict(), name)) {
    if (PyErr_Occurred()) throw python_error();
    return nullptr;
  }
  function = imported("torch._C._dynamo.eval_frame", "set_eval_frame");
  return function;
}

}  // namespace

PythonState::PythonState()
    : context_(py::reinterpret_steal<py::object>(checked(PyContext_CopyCurrent()))),
      functional_calls_(py::reinterpret_steal<py::object>(open_functional_calls())),
      device_(py::reinterpret_steal<py::object>(current_device())),
      torch_function_(PythonTorchFunctionTLS::get_state()) {}

PythonStateScope::PythonStateScope(const PythonState& state)
    : torch_function_(PythonTorchFunctionTLS::get_state()) {
  // Enter a copy, since only one thread can be in a context, and other replays need the context.
  THPObjectPtr context(checked(PyContext_Copy(state.context_.ptr())));
  if (state.functional_calls_)
    functional_calls_ = enter_functional_calls(state.functional_calls_.ptr());
  if (PyContext_Enter(context) < 0) {
    leave_functional_calls(functional_calls_);
    throw python_error();
  }
  context_ = context.release();
  device_ = current_device();
  if (device_ == state.device_.ptr()) Py_CLEAR(device_);
  if (device_) set_current_device(state.device_.ptr());
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

void add_functional_calls(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  m.def("_push_functional_call", torch::wrap_pybind_function(push_functional_call));
  m.def("_pop_functional_call", torch::wrap_pybind_function(pop_functional_call));
}

}  // namespace remat::python
