// SPDX-License-Identifier: BSD-3-Clause

// Calls remat_meta._install, _agreement and _fsdp, and runs functions hidden from regions.
#include "before_region.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <cstdint>
#include <memory>
#include <utility>

#include <remat/backend/first_use.h>
#include <remat/engine/gathered_memory.h>
#include <remat/engine/hidden_scopes.h>

#include "bindings.h"
#include "errors.h"
#include "function_wrapper.h"
#include "owned_object.h"

namespace remat::python {
namespace {

// Note [Imports and the GIL]: an import releases the GIL. If a static variable of C++ were
// initialized by an import, another thread could reach the variable meanwhile. That thread would
// hold the GIL while it waits for the import, and the import needs the GIL to end. To avoid this
// deadlock, objects that are looked up once are kept in plain pointers, which two threads may set
// to the same object.

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
  return make_wrapper(entry_type, call_entry, std::make_shared<const WrapperState>(), function);
  END_HANDLE_TH_ERRORS
}

PyMethodDef entry_functions[] = {{"_make_entry", make_entry, METH_O, nullptr},
                                 {nullptr, nullptr, 0, nullptr}};

/// Lets regions notice the backward passes inside them, see remat_meta._engine. Does nothing after
/// the first call.
void install_in_engine() {
  static bool is_done = false;
  if (is_done) return;
  py::module_::import("remat_meta._install").attr("before_first_region")();
  is_done = true;
}

PyObject* agreement = nullptr;  // called with (options, function); null if ranks do not compare
uint64_t agreement_number = 0;  // counts the agreements that were set

void set_agreement(const py::object& met) {
  PyObject* const old = agreement;
  agreement = met.is_none() ? nullptr : Py_NewRef(met.ptr());
  Py_XDECREF(old);
  ++agreement_number;
}

/// Reports the region to the agreement, if there is one, unless the last region with these settings
/// had the same function.
void report_to_agreement(const Settings& settings, PyObject* function) {
  if (!agreement) return;
  const std::pair<const PyObject*, uint64_t> now{function, agreement_number};
  if (settings.reported == now) return;
  PyObject* const keywords = settings.keywords ? settings.keywords->get() : Py_None;
  const THPObjectPtr done(PyObject_CallFunctionObjArgs(agreement, keywords, function, nullptr));
  if (!done) throw_python_error();
  settings.reported = now;
}

/// Once FSDP has been imported, hides its ops from regions. See Note [Imports and the GIL].
void install_in_fsdp() {
  static bool is_done = false;
  if (is_done) return;
  static PyObject* const name =
      PyUnicode_InternFromString("torch.distributed.fsdp._fully_shard._fsdp_state");
  const THPObjectPtr fsdp(PyImport_GetModule(name));
  if (!fsdp) return;
  py::module_::import("remat_meta._fsdp").attr("install")();
  is_done = true;
}

void call_gatherer(const SharedObject& function) {
  const py::gil_scoped_acquire gil;
  const SuspendScopes unseen;
  const THPObjectPtr result(PyObject_CallNoArgs(function->get()));
  if (!result) throw_python_error();
}

py::object call_unseen(const py::object& function, const py::args& args, const py::kwargs& kwargs) {
  const SuspendScopes unseen;
  return function(*args, **kwargs);
}

}  // namespace

void before_region(const Settings& settings, PyObject* function) {
  install_in_engine();
  install_in_fsdp();
  report_to_agreement(settings, function);
}

void add_entries(PyObject* module) {
  entry_type = add_wrapper_type(module, "remat_meta._C.Entry",
                                "A function whose call may be a first use.", /*binds=*/false);
  checked(PyModule_AddFunctions(module, entry_functions));
  for (const char* const name :
       {"checkpoint", "region", "native_op", "op", "is_recomputing", "recompute_needs_tensor"}) {
    THPObjectPtr function(checked(PyObject_GetAttrString(module, name)));
    THPObjectPtr entry(checked(make_entry(module, function)));
    if (PyObject_SetAttrString(module, name, entry.get()) < 0) throw python_error();
  }
  py::reinterpret_borrow<py::module_>(module).def(
      "_start_recordings", torch::wrap_pybind_function_no_gil(detail::first_use));
}

void add_ranks(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  m.def("_set_agreement", set_agreement);
  m.def("_call_unseen", &call_unseen);
  m.def("_note_gathered",
        torch::wrap_pybind_function(
            [](const at::Tensor& tensor, const at::Tensor& shard, const py::object& gather) {
              note_gathered(tensor, shard,
                            [function = share(gather.ptr())] { call_gatherer(function); });
            }));
}

}  // namespace remat::python
