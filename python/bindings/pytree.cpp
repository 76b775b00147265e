// SPDX-License-Identifier: BSD-3-Clause

// Queries classes and torch.utils._pytree.
#include "pytree.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>

namespace remat::python {
namespace {

bool has_attribute(PyTypeObject* type, const char* name) {
  return PyObject_HasAttrString(reinterpret_cast<PyObject*>(type), name) != 0;
}

PyObject* registered_nodes() {
  static PyObject* found = nullptr;  // Note [Imports and the GIL]
  if (found) return found;
  THPObjectPtr module(PyImport_ImportModule("torch.utils._pytree"));
  if (module) found = PyObject_GetAttrString(module, "SUPPORTED_NODES");
  if (!found) throw python_error();
  return found;
}

bool is_scalar(PyTypeObject* type) {
  return type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type ||
         type == &PyUnicode_Type || type == Py_TYPE(Py_None);
}

}  // namespace

bool is_named_tuple(PyTypeObject* type) {
  return PyType_IsSubtype(type, &PyTuple_Type) && has_attribute(type, "_fields") &&
         has_attribute(type, "_make");
}

bool is_struct_sequence(PyTypeObject* type) {
  return PyType_IsSubtype(type, &PyTuple_Type) && has_attribute(type, "n_sequence_fields");
}

PyObject* find_pytree_node(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  if (is_scalar(type)) return nullptr;
  PyObject* const node =
      PyDict_GetItemWithError(registered_nodes(), reinterpret_cast<PyObject*>(type));
  if (!node && PyErr_Occurred()) throw python_error();
  return node;
}

std::pair<THPObjectPtr, THPObjectPtr> flatten(PyObject* node, PyObject* object) {
  THPObjectPtr parts(PyObject_CallMethod(node, "flatten_fn", "O", object));
  if (!parts) throw python_error();
  PyObject* children = nullptr;
  PyObject* context = nullptr;
  if (!PyArg_ParseTuple(parts, "OO:flatten_fn", &children, &context)) throw python_error();
  THPObjectPtr list(PySequence_List(children));
  if (!list) throw python_error();
  return {std::move(list), THPObjectPtr::dup(context)};
}

}  // namespace remat::python
