// SPDX-License-Identifier: BSD-3-Clause

// Calls that regions do not see, and Python functions that gather memory.
#include "sharded_modules.h"

#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <utility>

#include <remat/engine/gathered_memory.h>
#include <remat/engine/hidden_scopes.h>

#include "errors.h"
#include "owned_object.h"

namespace remat::python {
namespace {

namespace py = pybind11;

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

void add_sharded_modules(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  m.def("_call_unseen", &call_unseen);
  m.def("_note_gathered",
        torch::wrap_pybind_function(
            [](const at::Tensor& tensor, const at::Tensor& shard, const py::object& gather) {
              note_gathered(tensor, shard,
                            [function = share(gather.ptr())] { call_gatherer(function); });
            }));
}

// See Note [Imports and the GIL].
void tell_fsdp_of_regions() {
  static bool told = false;
  if (told) return;
  static PyObject* const name =
      PyUnicode_InternFromString("torch.distributed.fsdp._fully_shard._fsdp_state");
  const THPObjectPtr fsdp(PyImport_GetModule(name));
  if (!fsdp) return;
  py::module_::import("remat_meta._fsdp").attr("install")();
  told = true;
}

}  // namespace remat::python
