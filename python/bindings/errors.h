// SPDX-License-Identifier: BSD-3-Clause

// Converts remat's errors to Python exceptions and back.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>

#include <exception>
#include <string>
#include <utility>

namespace remat::python {

/// Creates the exception classes and adds them to `module`.
void add_errors(PyObject* module);

/// The BaseException subclass that ends a replay inside Python code, as a borrowed reference.
PyObject* stop_replay_class();

/// True while Python handles a StopReplay, that is, while an except block, a finally block or an
/// __exit__ runs because of a StopReplay.
bool handles_stop();

/// True for a Python error that is neither an Exception nor a StopReplay. Call under the GIL.
bool is_interrupt(const std::exception_ptr& error);

/// Returns the class name of `value` for messages, with its module, since another library may have
/// a class of the same name.
std::string type_of(PyObject* value);

/// Returns `made`. If `made` is null, throws the Python error that is set.
inline PyObject* checked(PyObject* made) {
  if (!made) throw python_error();
  return made;
}

/// If `status` is negative, throws the Python error that is set.
inline void checked(int status) {
  if (status < 0) throw python_error();
}

/// Returns an attribute of a module, which is imported, as a new reference. Throws python_error.
PyObject* imported(const char* module, const char* name);

/// Throws a python_error that holds the Python error that is set.
[[noreturn]] void throw_python_error();

/// Rethrows `error` for Python. A C++ ReplayMismatch becomes the Python class of that name, with
/// the traceback of `escaped` (the exception that left the region's function) if `escaped` is a
/// Python error. A Python error gets `note` as a note. If a hook's error is lost because the
/// function went on, throws RuntimeError with `note`. Other errors are thrown unchanged.
[[noreturn]] void rethrow_in_python(const std::exception_ptr& error,
                                    const std::exception_ptr& escaped, const char* note);

/// Calls `fn`. If a warning filter turns a warning of `fn` into an error, raises the error at once,
/// because torch would raise it only at the end of the binding, where the binding's result would be
/// lost. Throws python_error and what `fn` throws. Call under the GIL.
template <class Fn>
void with_warnings_now(Fn&& fn) {
  torch::PyWarningHandler warnings;
  try {
    std::forward<Fn>(fn)();
  } catch (...) {
    warnings.set_in_exception();
    throw;
  }
}

}  // namespace remat::python
