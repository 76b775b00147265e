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

class EntryState final : public WrapperState {
 public:
  PyObject* reduce(PyObject* function) const override {
    return PyErr_Format(PyExc_TypeError, "cannot pickle %R", function);
  }
  PyObject* show() const override { return PyUnicode_FromString("remat_meta"); }
};

// Note [Imports and the GIL]: an import releases the GIL. If an import initialized a static
// variable of C++, another thread that reached it meanwhile would wait for it while holding the
// GIL, forever. So objects that are looked up once are kept in plain pointers, which two threads
// may set to the same object.

bool is_used = false;

PyObject* call_first(PyObject* function, PyObject* const* values, size_t flags,
                     PyObject* keywords) {
  HANDLE_TH_ERRORS
  TORCH_CHECK(function, "[remat_meta] this object has been cleared");
  is_used = py::module_::import("remat_meta._install").attr("on_first_use")().cast<bool>();
  return PyObject_Vectorcall(function, values, flags, keywords);
  END_HANDLE_TH_ERRORS
}

PyObject* call_entry(PyObject* object, PyObject* const* values, size_t flags, PyObject* keywords) {
  PyObject* const function = function_of(object);
  if (C10_UNLIKELY(!is_used || !function)) return call_first(function, values, flags, keywords);
  return PyObject_Vectorcall(function, values, flags, keywords);
}

PyTypeObject* entry_type = nullptr;  // never freed

PyObject* make_entry(PyObject* /*module*/, PyObject* function) {
  HANDLE_TH_ERRORS
  return make_wrapper(entry_type, call_entry, std::make_shared<const EntryState>(), function);
  END_HANDLE_TH_ERRORS
}

PyMethodDef entry_functions[] = {{"_make_entry", make_entry, METH_O, nullptr},
                                 {nullptr, nullptr, 0, nullptr}};

}  // namespace

void before_first_region() {
  static bool is_done = false;
  if (is_done) return;
  py::module_::import("remat_meta._install").attr("before_first_region")();
  is_done = true;
}

void add_entries(PyObject* module) {
  entry_type =
      make_static_wrapper_type("remat_meta._C.Entry", "A function whose call may be a first use.");
  if (PyModule_AddObjectRef(module, "Entry", reinterpret_cast<PyObject*>(entry_type)) < 0 ||
      PyModule_AddFunctions(module, entry_functions) < 0)
    throw python_error();
  for (const char* const name :
       {"checkpoint", "region", "native_op", "op", "is_recomputing", "recompute_needs_tensor"}) {
    THPObjectPtr function(checked(PyObject_GetAttrString(module, name)));
    THPObjectPtr entry(checked(make_entry(module, function)));
    if (PyObject_SetAttrString(module, name, entry.get()) < 0) throw python_error();
  }
  py::reinterpret_borrow<py::module_>(module).def(
      "_start_recordings", torch::wrap_pybind_function_no_gil(detail::first_use));
}

}  // namespace remat::python
