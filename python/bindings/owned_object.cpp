// SPDX-License-Identifier: BSD-3-Clause

// Releases references to Python objects.
#include "owned_object.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

namespace remat::python {

bool interpreter_lives() {
  return Py_IsInitialized() && !Py_IsFinalizing();
}

OwnedObject::OwnedObject(PyObject* object) : object_(Py_NewRef(object)) {}

OwnedObject::~OwnedObject() {
  if (!interpreter_lives()) return;
  const pybind11::gil_scoped_acquire gil;
  const ErrorAside error;
  Py_DECREF(object_);
}

}  // namespace remat::python
