// SPDX-License-Identifier: BSD-3-Clause

// Owners of Python objects. Threads without the GIL may free them, as backward does with a graph.
#pragma once

#include <torch/csrc/python_headers.h>

#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <memory>

namespace remat::python {

/// True while Python can be called. Once this is false, owners of Python objects leak them.
inline bool interpreter_lives() {
  return Py_IsInitialized() && !Py_IsFinalizing();
}

/// While alive, sets aside the Python error that is being raised, so that destructors may run
/// Python code.
class ErrorAside {
 public:
  ErrorAside() { PyErr_Fetch(&type_, &value_, &traceback_); }
  ErrorAside(const ErrorAside&) = delete;
  ErrorAside& operator=(const ErrorAside&) = delete;
  ~ErrorAside() {
    if (type_) PyErr_Restore(type_, value_, traceback_);
  }

 private:
  PyObject* type_ = nullptr;
  PyObject* value_ = nullptr;
  PyObject* traceback_ = nullptr;
};

/// Owns a reference to `object`. The destructor takes the GIL on whatever thread it runs, and does
/// not release the reference once the interpreter is shutting down. Construct under the GIL.
class OwnedObject {
 public:
  explicit OwnedObject(PyObject* object) : object_(Py_NewRef(object)) {}
  OwnedObject(const OwnedObject&) = delete;
  OwnedObject& operator=(const OwnedObject&) = delete;
  ~OwnedObject() {
    if (!interpreter_lives()) return;
    const pybind11::gil_scoped_acquire gil;
    const ErrorAside error;
    Py_DECREF(object_);
  }

  /// Borrowed. Needs no GIL.
  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

/// Can be copied without the GIL, as std::any and std::function require.
using SharedObject = std::shared_ptr<const OwnedObject>;

inline SharedObject share(PyObject* object) {
  return std::make_shared<const OwnedObject>(object);
}

}  // namespace remat::python
