// SPDX-License-Identifier: BSD-3-Clause

// Python objects that outlive the GIL: held by graphs, freed by backward.
#pragma once

#include <torch/csrc/python_headers.h>

#include <memory>

namespace remat::python {

/// A reference of its own to `object`, given back under the GIL on whatever thread destroys it; not
/// at all once the interpreter is going down. Made under the GIL.
class OwnedObject {
 public:
  explicit OwnedObject(PyObject* object);
  OwnedObject(const OwnedObject&) = delete;
  OwnedObject& operator=(const OwnedObject&) = delete;
  ~OwnedObject();

  /// Borrowed. May be asked for without the GIL.
  PyObject* get() const { return object_; }

 private:
  PyObject* object_;
};

/// Copyable without the GIL, as std::any and std::function want.
using SharedObject = std::shared_ptr<const OwnedObject>;

inline SharedObject share(PyObject* object) {
  return std::make_shared<const OwnedObject>(object);
}

/// True if Python can still be called: else its objects are left to the end of the process.
bool interpreter_lives();

/// Sets the error that is being raised aside while alive, so that destructors may run Python code.
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
