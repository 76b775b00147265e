// SPDX-License-Identifier: BSD-3-Clause

// Exception classes and their conversion.
#include "errors.h"

#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <remat/engine/replay_mismatch.h>

#include "owned_object.h"

namespace remat::python {
namespace {

PyObject* stop_class = nullptr;
PyObject* mismatch_class = nullptr;

PyObject* make_class(PyObject* module, const char* name, const char* doc, PyObject* base) {
  PyObject* const made = checked(PyErr_NewExceptionWithDoc(name, doc, base, nullptr));
  const char* const short_name = strrchr(name, '.') + 1;
  checked(PyModule_AddObjectRef(module, short_name, made));
  return made;  // never freed, like the module
}

/// Returns the Python exception in `error`; null if `error` is null or holds no python_error.
python_error* as_python_error(const std::exception_ptr& error) {
  if (!error) return nullptr;
  try {
    std::rethrow_exception(error);
  } catch (python_error& found) {
    return &found;  // alive as long as `error`
  } catch (...) {
    return nullptr;
  }
}

void add_note(python_error& error, const char* note) {
  if (!error.type) error.persist();  // takes an error that is still set in the interpreter
  if (!error.type) return;
  const ErrorAside aside;
  PyErr_NormalizeException(&error.type, &error.value, &error.traceback);
  if (!error.value) return;
  if (!PyObject_HasAttrString(error.value, "add_note")) return;  // missing in Python 3.10
  PyObject* const result = PyObject_CallMethod(error.value, "add_note", "s", note);
  if (!result) PyErr_Clear();
  Py_XDECREF(result);
}

}  // namespace

std::string type_of(PyObject* value) {
  const ErrorAside aside;
  PyTypeObject* const type = Py_TYPE(value);
  THPObjectPtr module(PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__module__"));
  const char* const text = module && PyUnicode_Check(module) ? PyUnicode_AsUTF8(module) : nullptr;
  PyErr_Clear();
  const std::string name = type->tp_name;
  const bool is_plain = !text || std::strcmp(text, "builtins") == 0 || name.find('.') != name.npos;
  return is_plain ? name : text + ("." + name);
}

void add_errors(PyObject* module) {
  stop_class = make_class(
      module, "remat_meta._C.StopReplay",
      "Ends a replay inside the region's function. Not an Exception: let it pass, as SystemExit.",
      PyExc_BaseException);
  mismatch_class = make_class(
      module, "remat_meta.ReplayMismatch",
      "Forward and replay of a region differ. Raised by backward; the message names the region, "
      "the place, what the forward did, what the replay did, and what to do.",
      PyExc_RuntimeError);
}

PyObject* stop_replay_class() {
  return stop_class;
}

bool handles_stop() {
  PyObject* type = nullptr;
  PyObject* value = nullptr;
  PyObject* traceback = nullptr;
  PyErr_GetExcInfo(&type, &value, &traceback);
  bool found = false;
  // An exception raised while the stop was handled has the stop as its context.
  for (PyObject* error = value; error && !found;) {
    found = PyErr_GivenExceptionMatches(error, stop_class) != 0;
    error = PyException_GetContext(error);
    Py_XDECREF(error);  // the previous exception owns it as its context
  }
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(traceback);
  return found;
}

bool is_interrupt(const std::exception_ptr& error) {
  const python_error* const raised = as_python_error(error);
  return raised && !PyErr_GivenExceptionMatches(raised->type, PyExc_Exception) &&
         !PyErr_GivenExceptionMatches(raised->type, stop_class);
}

PyObject* imported(const char* module, const char* name) {
  THPObjectPtr found(checked(PyImport_ImportModule(module)));
  return checked(PyObject_GetAttrString(found, name));
}

void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
}

void rethrow_in_python(const std::exception_ptr& error, const std::exception_ptr& escaped,
                       const char* note) {
  try {
    std::rethrow_exception(error);
  } catch (const ReplayMismatch& mismatch) {
    const pybind11::gil_scoped_acquire gil;
    python_error* const raised = as_python_error(escaped);
    PyErr_SetString(mismatch_class, mismatch.what_without_backtrace());
    python_error converted;
    converted.persist();
    if (raised && raised->traceback && !converted.traceback)
      converted.traceback = Py_NewRef(raised->traceback);
    throw converted;
  } catch (python_error& raised) {
    const pybind11::gil_scoped_acquire gil;
    add_note(raised, note);
    if (raised.type) throw;
    // A saved-tensor hook raised the error and left it set in the interpreter. So the interpreter
    // raised it in the region's function, and `escaped` holds the error.
    if (python_error* const left = as_python_error(escaped)) {
      add_note(*left, note);
      std::rethrow_exception(escaped);
    }
    PyErr_Format(PyExc_RuntimeError, "%s, by a hook on saved tensors, and its function went on",
                 note);
    throw_python_error();
  }
}

}  // namespace remat::python
