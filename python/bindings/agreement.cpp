// SPDX-License-Identifier: BSD-3-Clause

// Calls remat_meta._agreement and remat_meta._collective_watch.
#include "agreement.h"

#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <cstdint>

#include <remat/backend/collective_watch.h>

#include "errors.h"
#include "owned_object.h"

namespace remat::python {
namespace {

namespace py = pybind11;

PyObject* agreement = nullptr;  // met(options, function)
uint64_t agreement_number = 0;  // number of the agreement that is set, from 1
PyObject* watch = nullptr;      // an object with begin(), end() and before_collective()

void exchange(PyObject*& kept, const py::object& object) {
  PyObject* const old = kept;
  kept = object.is_none() ? nullptr : Py_NewRef(object.ptr());
  Py_XDECREF(old);
}

void set_agreement(const py::object& met) {
  exchange(agreement, met);
  ++agreement_number;
}

void before_collective(const OpCall& call) {
  const py::gil_scoped_acquire gil;
  if (!watch) return;
  py::list arguments;
  for (size_t i = 0; i < call.info().argument_count(); ++i)
    arguments.append(torch::jit::toPyObject(call.argument(i)));
  try {
    py::handle(watch).attr("before_collective")(call.info().name(), arguments);
  } catch (py::error_already_set& error) {
    error.restore();
    throw_python_error();
  }
}

void set_watch(const py::object& object) {
  exchange(watch, object);
  set_collective_watch(watch ? before_collective : nullptr);
}

/// `error`: the text of the function's exception, or null. Returns false with Python's error set.
bool end_run(const char* error) {
  return THPObjectPtr(PyObject_CallMethod(watch, "end", "z", error)).get() != nullptr;
}

}  // namespace

void tell_agreement(const Settings& settings, PyObject* function) {
  if (!agreement) return;
  const Settings::Told now{function, agreement_number};
  if (settings.told == now) return;
  PyObject* const keywords = settings.keywords ? settings.keywords->get() : Py_None;
  const THPObjectPtr done(PyObject_CallFunctionObjArgs(agreement, keywords, function, nullptr));
  if (!done) throw_python_error();
  settings.told = now;
}

WatchedRun::WatchedRun(const std::string& region, PyObject* function, bool is_replay)
    : open_(watch != nullptr) {
  if (!open_) return;
  const THPObjectPtr begun(PyObject_CallMethod(watch, "begin", "sOO", region.c_str(), function,
                                               is_replay ? Py_True : Py_False));
  if (!begun) throw_python_error();
}

WatchedRun::~WatchedRun() {
  if (!open_ || !watch) return;
  const ErrorAside error;
  if (!end_run("an exception")) PyErr_Clear();
}

void WatchedRun::finish() {
  if (!open_ || !watch) return;
  open_ = false;
  if (!end_run(nullptr)) throw_python_error();
}

void WatchedRun::fail() {
  if (!open_ || !watch) return;
  open_ = false;
  py::error_already_set error;
  if (!end_run(error.what())) PyErr_Clear();
  error.restore();
}

void add_agreement(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  m.def("_set_agreement", set_agreement);
  m.def("_set_collective_watch", set_watch);
}

}  // namespace remat::python
