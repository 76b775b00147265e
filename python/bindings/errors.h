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

/// True while Python handles a StopReplay: the running code is in an except or finally block, or in
/// an __exit__, that the StopReplay has entered.
bool handles_stop();

/// True for a Python error that is neither an Exception nor a StopReplay. Call under the GIL.
bool is_interrupt(const std::exception_ptr& error);

/// Class name of `value` for messages, with its module, since another library may have a class of
/// the same name.
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

/// Throws a python_error that holds the Python error that is set.
[[noreturn]] void throw_python_error();

/// Throws `error` for Python: a C++ ReplayMismatch as its Python class, with the traceback of
/// `escaped`, the exception that left the region's function, if that is a Python error. Other
/// Python errors get a note that begins with `note`.
[[noreturn]] void rethrow_in_python(const std::exception_ptr& error,
                                    const std::exception_ptr& escaped, const char* note);

/// Calls `fn`. If a warning filter makes an error of a warning of `fn`, raises the error at once:
/// at the end of the binding, where torch would raise the error, the binding's result would be
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
