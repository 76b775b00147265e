// SPDX-License-Identifier: BSD-3-Clause

// Holds Python objects from places without the GIL: graphs hold them, and backward frees them.
#pragma once

#include <torch/csrc/python_headers.h>

#include <memory>

namespace remat::python {

/// Owns a reference to `object`. The destructor takes the GIL on whatever thread it runs, and does
/// not release the reference once the interpreter is shutting down. Construct under the GIL.
class OwnedObject {
 public:
  explicit OwnedObject(PyObject* object);
  OwnedObject(const OwnedObject&) = delete;
  OwnedObject& operator=(const OwnedObject&) = delete;
  ~OwnedObject();

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

/// True if Python can still be called; otherwise its objects are leaked.
bool interpreter_lives();

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

}  // namespace remat::python
