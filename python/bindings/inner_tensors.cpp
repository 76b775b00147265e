// SPDX-License-Identifier: BSD-3-Clause

// __tensor_flatten__, or the attributes.
#include "inner_tensors.h"

#include <c10/util/irange.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <remat/tape/hidden_scopes.h>
#include <remat/tape/scope.h>

#include "owned_object.h"

namespace remat::python {
namespace {

constexpr int kMaxDepth = 4;  // of lists in lists, from the attributes on

/// A tensor, or those in a list, a tuple or the values of a dict.
void add(PyObject* object, std::vector<at::Tensor>& tensors, int depth = 0) {
  if (!object || depth > kMaxDepth) return;
  if (THPVariable_Check(object)) {
    tensors.push_back(THPVariable_Unpack(object));
  } else if (PyDict_Check(object)) {
    Py_ssize_t position = 0;
    PyObject* value = nullptr;
    while (PyDict_Next(object, &position, nullptr, &value)) add(value, tensors, depth + 1);
  } else if (PyList_Check(object) || PyTuple_Check(object)) {
    for (const auto i : c10::irange(PySequence_Fast_GET_SIZE(object)))
      add(PySequence_Fast_GET_ITEM(object, i), tensors, depth + 1);
  }
}

/// What lies in the __slots__ of its classes.
void add_slots(PyObject* object, std::vector<at::Tensor>& tensors) {
  THPObjectPtr copyreg(PyImport_ImportModule("copyreg"));
  if (!copyreg) return;
  THPObjectPtr names(PyObject_CallMethod(copyreg, "_slotnames", "(O)", Py_TYPE(object)));
  if (!names || !PyList_Check(names.get())) return;
  for (const auto i : c10::irange(PyList_GET_SIZE(names.get()))) {
    THPObjectPtr value(PyObject_GetAttr(object, PyList_GET_ITEM(names.get(), i)));
    add(value, tensors);
  }
}

/// False if the class does not say what it consists of.
bool add_flattened(PyObject* object, std::vector<at::Tensor>& tensors) {
  THPObjectPtr flat(PyObject_CallMethod(object, "__tensor_flatten__", nullptr));
  if (!flat || !PyTuple_Check(flat.get()) || PyTuple_GET_SIZE(flat.get()) < 1) return false;
  THPObjectPtr names(PySequence_List(PyTuple_GET_ITEM(flat.get(), 0)));
  if (!names) return false;
  for (const auto i : c10::irange(PyList_GET_SIZE(names.get()))) {
    THPObjectPtr inner(PyObject_GetAttr(object, PyList_GET_ITEM(names.get(), i)));
    add(inner, tensors);
  }
  return true;
}

}  // namespace

std::vector<at::Tensor> inner_tensors(const at::Tensor& tensor) {
  const pybind11::gil_scoped_acquire gil;
  const ErrorAside error;
  const SuspendScopes suspend;
  std::vector<at::Tensor> tensors;
  THPObjectPtr object(THPVariable_Wrap(tensor));
  if (object && !add_flattened(object, tensors)) {
    PyErr_Clear();
    THPObjectPtr attributes(PyObject_GenericGetDict(object, nullptr));
    add(attributes, tensors);
    add_slots(object, tensors);
  }
  PyErr_Clear();
  return tensors;
}

}  // namespace remat::python
