// SPDX-License-Identifier: BSD-3-Clause

// remat's errors as Python exceptions, and the other way round.
#pragma once

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/python_headers.h>

#include <exception>
#include <string>

namespace remat::python {

/// Makes the exception classes and adds them to `module`.
void add_errors(PyObject* module);

/// BaseException subclass that ends a replay inside Python code. Borrowed.
PyObject* stop_replay_class();

/// RuntimeError subclass for remat::ReplayMismatch. Borrowed.
PyObject* replay_mismatch_class();

/// True if the code that runs now is an except or finally block, or the __exit__ of a with block,
/// that a StopReplay has led to.
bool handles_stop();

/// True for a Python error that is no Exception and no StopReplay. Under the GIL.
bool is_interrupt(const std::exception_ptr& error);

/// Name of the class of `value`, for messages: with its module, since another library may have one
/// of the same name.
std::string type_of(PyObject* value);

/// `made`, or what Python's API said instead: throws the Python error that is set if it is null.
inline PyObject* checked(PyObject* made) {
  if (!made) throw python_error();
  return made;
}

/// Throws the Python error that is set as a python_error.
[[noreturn]] void throw_python_error();

/// Throws `error` as Python is to see it: ReplayMismatch as its class, with the traceback of
/// `escaped` if that is a Python error. Other errors of Python get a note that begins with `note`.
[[noreturn]] void rethrow_in_python(const std::exception_ptr& error,
                                    const std::exception_ptr& escaped, const char* note);

}  // namespace remat::python
