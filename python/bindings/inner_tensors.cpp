// SPDX-License-Identifier: BSD-3-Clause

// Finds inner tensors by __tensor_flatten__ or by attributes.
#include "bindings.h"

#include <c10/util/irange.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <remat/engine/flattened_tensor.h>
#include <remat/engine/held_storage.h>
#include <remat/engine/hidden_scopes.h>
#include <remat/engine/scope.h>

#include "errors.h"
#include "owned_object.h"

namespace remat::python {
namespace {

constexpr int kMaxDepth = 4;  // levels of containers that are searched below an attribute

/// Appends `object` if it is a tensor, or the tensors in a list, a tuple or the values of a dict.
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

/// Appends the tensors in the __slots__ of the object's classes.
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

/// The result of __tensor_flatten__.
struct Flat {
  THPObjectPtr names;  // a list; null if the class has no __tensor_flatten__
  THPObjectPtr context;
  // a dict of attributes that are no tensors, such as a DTensor's mesh since torch 2.12
  THPObjectPtr others;
};

/// True if a rebuilt tensor may share `value`, because it is hashable and contains no tensors.
bool is_shared(PyObject* value) {
  std::vector<at::Tensor> tensors;
  add(value, tensors);
  const bool has_hash = tensors.empty() && PyObject_Hash(value) != -1;
  PyErr_Clear();
  return has_hash;
}

/// Moves those attributes of `object` that are no tensors from flat.names to flat.others.
void split(PyObject* object, Flat& flat) {
  for (Py_ssize_t i = PyList_GET_SIZE(flat.names.get()); i-- > 0;) {
    PyObject* const name = PyList_GET_ITEM(flat.names.get(), i);
    THPObjectPtr value(PyObject_GetAttr(object, name));
    PyErr_Clear();
    if (!value || !is_shared(value)) continue;
    if (PyDict_SetItem(flat.others, name, value) != 0 ||
        PyList_SetSlice(flat.names, i, i + 1, nullptr) != 0)
      throw python_error();
  }
}

Flat flat_of(PyObject* object) {
  THPObjectPtr flat(PyObject_CallMethod(object, "__tensor_flatten__", nullptr));
  if (!flat || !PyTuple_Check(flat.get()) || PyTuple_GET_SIZE(flat.get()) < 1) return {};
  PyObject* const context =
      PyTuple_GET_SIZE(flat.get()) > 1 ? PyTuple_GET_ITEM(flat.get(), 1) : Py_None;
  Flat parts{THPObjectPtr(PySequence_List(PyTuple_GET_ITEM(flat.get(), 0))),
             THPObjectPtr(Py_NewRef(context)), THPObjectPtr(PyDict_New())};
  if (parts.names) split(object, parts);
  return parts;
}

/// Hash of the context and the attributes that are no tensors, from __tensor_flatten__.
size_t hash_of(Flat& flat) {
  size_t hash = flat.context.get() ? static_cast<size_t>(PyObject_Hash(flat.context.get())) : 0;
  PyErr_Clear();  // unhashable contexts all hash to -1, so they are not compared
  Py_ssize_t position = 0;
  PyObject* value = nullptr;
  while (flat.others.get() && PyDict_Next(flat.others.get(), &position, nullptr, &value))
    hash = hash * 31 + static_cast<size_t>(PyObject_Hash(value));
  return hash;
}

/// Appends the tensors that __tensor_flatten__ names. Returns false if the class lacks the method.
bool add_flattened(PyObject* object, std::vector<at::Tensor>& tensors) {
  Flat flat = flat_of(object);
  if (!flat.names) return false;
  for (const auto i : c10::irange(PyList_GET_SIZE(flat.names.get()))) {
    THPObjectPtr inner(PyObject_GetAttr(object, PyList_GET_ITEM(flat.names.get(), i)));
    add(inner, tensors);
  }
  return true;
}

/// Returns data from which _unflatten.py rebuilds a tensor like `object`; null if such a tensor
/// cannot be rebuilt.
THPObjectPtr recipe_of(PyObject* object, Flat& flat) {
  if (!flat.names || PyObject_HasAttrString(object, "__tensor_unflatten__") != 1) return {};
  THPObjectPtr recipe(Py_BuildValue("(OOOONN)", reinterpret_cast<PyObject*>(Py_TYPE(object)),
                                    flat.names.get(), flat.others.get(), flat.context.get(),
                                    PyObject_CallMethod(object, "size", nullptr),
                                    PyObject_CallMethod(object, "stride", nullptr)));
  THPObjectPtr module(recipe ? PyImport_ImportModule("remat_meta._unflatten") : nullptr);
  THPObjectPtr can(
      module ? PyObject_CallMethod(module, "can_be_made_again", "OO", object, recipe.get())
             : nullptr);
  if (can.get() != Py_True) return {};
  return recipe;
}

at::Tensor unflatten(const OwnedObject& recipe, c10::ArrayRef<at::Tensor> parts) {
  const pybind11::gil_scoped_acquire gil;
  const SuspendScopes suspend;
  THPObjectPtr tensors(checked(PyTuple_New(static_cast<Py_ssize_t>(parts.size()))));
  for (const auto i : c10::irange(parts.size()))
    PyTuple_SET_ITEM(tensors.get(), i, checked(THPVariable_Wrap(parts[i])));
  THPObjectPtr module(checked(PyImport_ImportModule("remat_meta._unflatten")));
  THPObjectPtr made(
      checked(PyObject_CallMethod(module, "unflatten", "OO", recipe.get(), tensors.get())));
  return THPVariable_Unpack(made.get());
}

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

uint64_t hash_of_class(const at::Tensor& tensor) {
  const pybind11::gil_scoped_acquire gil;
  const ErrorAside error;
  const SuspendScopes suspend;
  THPObjectPtr object(THPVariable_Wrap(tensor));
  if (!object) return PyErr_Clear(), 0;
  Flat flat = flat_of(object);
  PyErr_Clear();
  const size_t parts = hash_of(flat);
  return reinterpret_cast<uintptr_t>(Py_TYPE(object.get())) ^ (uint64_t{parts} << 1U);
}

std::optional<FlattenedTensor> flatten_tensor(const at::Tensor& tensor) {
  const pybind11::gil_scoped_acquire gil;
  const ErrorAside error;
  const SuspendScopes suspend;
  THPObjectPtr object(THPVariable_Wrap(tensor));
  Flat flat = object ? flat_of(object) : Flat();
  PyErr_Clear();
  THPObjectPtr recipe = object ? recipe_of(object, flat) : THPObjectPtr();
  PyErr_Clear();
  if (!recipe) return std::nullopt;
  FlattenedTensor flattened;
  for (const auto i : c10::irange(PyList_GET_SIZE(flat.names.get()))) {
    THPObjectPtr part(PyObject_GetAttr(object, PyList_GET_ITEM(flat.names.get(), i)));
    PyErr_Clear();
    if (!part || !THPVariable_Check(part.get())) return std::nullopt;
    flattened.parts.push_back(THPVariable_Unpack(part.get()));
  }
  flattened.unflatten = [recipe = share(recipe.get())](c10::ArrayRef<at::Tensor> parts) {
    return unflatten(*recipe, parts);
  };
  return flattened;
}

}  // namespace

void install_tensor_classes() {
  set_inner_tensors(&inner_tensors);
  set_tensor_classes(&flatten_tensor, &hash_of_class);
}

}  // namespace remat::python
