// SPDX-License-Identifier: BSD-3-Clause

// Recognizes and flattens Python containers.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/object_ptr.h>

#include <utility>

#include "errors.h"

namespace remat::python {

inline bool has_attribute(PyTypeObject* type, const char* name) {
  return PyObject_HasAttrString(reinterpret_cast<PyObject*>(type), name) != 0;
}

inline PyObject* registered_nodes() {
  static PyObject* found = nullptr;  // Note [Imports and the GIL]
  if (!found) found = imported("torch.utils._pytree", "SUPPORTED_NODES");
  return found;
}

inline bool is_scalar(PyTypeObject* type) {
  return type == &PyLong_Type || type == &PyFloat_Type || type == &PyBool_Type ||
         type == &PyUnicode_Type || type == Py_TYPE(Py_None);
}

/// True for a class made by collections.namedtuple or typing.NamedTuple.
inline bool is_named_tuple(PyTypeObject* type) {
  return PyType_IsSubtype(type, &PyTuple_Type) && has_attribute(type, "_fields") &&
         has_attribute(type, "_make");
}

/// True for a structseq class, such as those in torch.return_types.
inline bool is_struct_sequence(PyTypeObject* type) {
  return PyType_IsSubtype(type, &PyTuple_Type) && has_attribute(type, "n_sequence_fields");
}

/// Returns a borrowed reference to the node that torch.utils._pytree has registered for the class
/// of `object`; null if there is none. Throws python_error.
inline PyObject* find_pytree_node(PyObject* object) {
  PyTypeObject* const type = Py_TYPE(object);
  if (is_scalar(type)) return nullptr;
  PyObject* const node =
      PyDict_GetItemWithError(registered_nodes(), reinterpret_cast<PyObject*>(type));
  if (!node && PyErr_Occurred()) throw python_error();
  return node;
}

/// Flattens `object` with its registered `node`. Returns a list of the children, and the context.
/// Throws python_error.
inline std::pair<THPObjectPtr, THPObjectPtr> flatten(PyObject* node, PyObject* object) {
  THPObjectPtr parts(checked(PyObject_CallMethod(node, "flatten_fn", "O", object)));
  PyObject* children = nullptr;
  PyObject* context = nullptr;
  if (!PyArg_ParseTuple(parts, "OO:flatten_fn", &children, &context)) throw python_error();
  THPObjectPtr list(checked(PySequence_List(children)));
  return {std::move(list), THPObjectPtr::dup(context)};
}

}  // namespace remat::python
