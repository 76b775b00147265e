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

/// The BaseException subclass that ends a replay inside Python code. Borrowed.
PyObject* stop_replay_class();

/// True if the running code is an except or finally block, or the __exit__ of a with block, that a
/// StopReplay has led to.
bool handles_stop();

/// True for a Python error that is neither an Exception nor a StopReplay. Call under the GIL.
bool is_interrupt(const std::exception_ptr& error);

/// Class name of `value` for messages, with its module, since another library may have a class of
/// the same name.
std::string type_of(PyObject* value);

/// Returns `made`; throws the Python error that is set if it is null.
inline PyObject* checked(PyObject* made) {
  if (!made) throw python_error();
  return made;
}

/// Throws the Python error that is set if `status` is negative.
inline void checked(int status) {
  if (status < 0) throw python_error();
}

/// Throws the Python error that is set as a python_error.
[[noreturn]] void throw_python_error();

/// Throws `error` for Python: ReplayMismatch as its Python class, with the traceback of `escaped`
/// if that is a Python error. Other Python errors get a note that begins with `note`.
[[noreturn]] void rethrow_in_python(const std::exception_ptr& error,
                                    const std::exception_ptr& escaped, const char* note);

/// Calls `fn` and immediately raises the errors that warning filters make of its warnings. At the
/// end of the binding, where they would be raised otherwise, the binding's result would be lost.
/// Throws python_error and what `fn` throws. Call under the GIL.
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
