// SPDX-License-Identifier: BSD-3-Clause

// Calls remat_meta._agreement.
#include "agreement.h"

#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <cstdint>
#include <utility>

#include "errors.h"

namespace remat::python {
namespace {

namespace py = pybind11;

PyObject* agreement = nullptr;  // met(options, function)
uint64_t agreement_number = 0;  // number of the agreement that is set, from 1

void set_agreement(const py::object& met) {
  PyObject* const old = agreement;
  agreement = met.is_none() ? nullptr : Py_NewRef(met.ptr());
  Py_XDECREF(old);
  ++agreement_number;
}

}  // namespace

void tell_agreement(const Settings& settings, PyObject* function) {
  if (!agreement) return;
  const std::pair<const PyObject*, uint64_t> now{function, agreement_number};
  if (settings.reported == now) return;
  PyObject* const keywords = settings.keywords ? settings.keywords->get() : Py_None;
  const THPObjectPtr done(PyObject_CallFunctionObjArgs(agreement, keywords, function, nullptr));
  if (!done) throw_python_error();
  settings.reported = now;
}

void add_agreement(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  m.def("_set_agreement", set_agreement);
}

}  // namespace remat::python
