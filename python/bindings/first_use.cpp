// SPDX-License-Identifier: BSD-3-Clause

#include "first_use.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>

#include <remat/backend/first_use.h>

#include "errors.h"
#include "function_wrapper.h"

namespace remat::python {
namespace {

namespace py = pybind11;

/// A function that makes regions or named calls.
class MakerState final : public WrapperState {
 public:
  PyObject* reduce(PyObject* function) const override {
    return PyErr_Format(PyExc_TypeError, "cannot pickle %R", function);
  }
  PyObject* show() const override { return PyUnicode_FromString("remat_meta"); }
};

PyObject* call_maker(PyObject* object, PyObject* const* values, size_t flags, PyObject* keywords) {
  HANDLE_TH_ERRORS
  on_first_use();
  PyObject* const function = function_of(object);
  TORCH_CHECK(function, "[remat_meta] this object has been cleared");
  return PyObject_Vectorcall(function, values, flags, keywords);
  END_HANDLE_TH_ERRORS
}

}  // namespace

// Note [Imports and the GIL]: an import releases the GIL. If an import initialized a static
// variable of C++, another thread that reached it meanwhile would wait for it while holding the
// GIL, forever. So objects that are looked up once are kept in plain pointers, which two threads
// may set to the same object.

void on_first_use() {
  static bool is_done = false;
  if (is_done) return;
  is_done = py::module_::import("remat_meta._install").attr("on_first_use")().cast<bool>();
}

void before_first_region() {
  static bool is_done = false;
  if (is_done) return;
  py::module_::import("remat_meta._install").attr("before_first_region")();
  is_done = true;
}

void add_makers(PyObject* module) {
  PyTypeObject* const type = make_static_wrapper_type(
      "remat_meta._C.Maker", "A function that makes regions or named calls.");
  if (PyModule_AddObjectRef(module, "Maker", reinterpret_cast<PyObject*>(type)) < 0)
    throw python_error();
  for (const char* const name : {"checkpoint", "region", "native_op", "op"}) {
    THPObjectPtr function(checked(PyObject_GetAttrString(module, name)));
    THPObjectPtr maker(
        make_wrapper(type, call_maker, std::make_shared<const MakerState>(), function.get()));
    if (PyObject_SetAttrString(module, name, maker.get()) < 0) throw python_error();
  }
  py::reinterpret_borrow<py::module_>(module).def("_start_recordings",
                                                  torch::wrap_pybind_function(detail::first_use));
}

}  // namespace remat::python
