// SPDX-License-Identifier: BSD-3-Clause

// Keeps a stack of calls per thread and passes it to Python.
#include "functional_call.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include "errors.h"

namespace remat::python {
namespace {

thread_local PyObject* open_calls = nullptr;  // a list, created by the first call and never freed

void push(const py::object& call) {
  if (!open_calls) open_calls = checked(PyList_New(0));
  if (PyList_Append(open_calls, call.ptr()) < 0) throw python_error();
}

void pop() {
  const Py_ssize_t size = open_calls ? PyList_GET_SIZE(open_calls) : 0;
  if (size > 0 && PyList_SetSlice(open_calls, size - 1, size, nullptr) < 0) throw python_error();
}

}  // namespace

PyObject* open_functional_calls() {
  if (!open_calls || PyList_GET_SIZE(open_calls) == 0) return nullptr;
  return checked(PyList_AsTuple(open_calls));
}

PyObject* enter_functional_calls(PyObject* calls) {
  THPObjectPtr module(checked(PyImport_ImportModule("remat_meta._functional")));
  return checked(PyObject_CallMethod(module, "enter", "(O)", calls));
}

void leave_functional_calls(PyObject* entered) {
  if (!entered) return;
  PyObject* const left = PyObject_CallMethod(entered, "close", nullptr);
  if (!left) PyErr_WriteUnraisable(entered);
  Py_XDECREF(left);
  Py_DECREF(entered);
}

void add_functional_calls(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  m.def("_push_functional_call", torch::wrap_pybind_function(push));
  m.def("_pop_functional_call", torch::wrap_pybind_function(pop));
}

}  // namespace remat::python
