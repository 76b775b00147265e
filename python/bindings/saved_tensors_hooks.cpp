// SPDX-License-Identifier: BSD-3-Clause

// A pair of hooks as a context manager.
#include "saved_tensors_hooks.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <any>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <remat/backend/saved_tensors_hooks_guard.h>
#include <remat/engine/saved_tensors_hooks.h>
#include <remat/engine/scope.h>

#include "callbacks.h"
#include "docstrings.h"
#include "errors.h"
#include "owned_object.h"

namespace remat::python {
namespace {

class HooksObject {
 public:
  HooksObject(py::object pack, py::object unpack, py::object capture_context)
      : parts_(py::make_tuple(std::move(pack), std::move(unpack), std::move(capture_context))) {
    check(0, "pack");
    check(1, "unpack");
    if (!parts_[2].is_none()) check(2, "capture_context");
  }

  HooksObject(HooksObject&&) = default;
  HooksObject& operator=(HooksObject&&) = delete;
  // A scope that is not innermost is leaked, because scopes still inside refer to it.
  ~HooksObject() {
    while (!open_.empty()) {
      if (!open_.back().is_innermost()) static_cast<void>(open_.back().guard.release());  // NOLINT
      open_.pop_back();
    }
  }

  void enter() {
    SharedObject capture;
    if (!parts_[2].is_none()) capture = share(PyTuple_GET_ITEM(parts_.ptr(), 2));
    auto guard = std::make_unique<SavedTensorsHooksGuard>(
        make_saved_tensors_hooks(share(PyTuple_GET_ITEM(parts_.ptr(), 0)),
                                 share(PyTuple_GET_ITEM(parts_.ptr(), 1)), std::move(capture)));
    open_.push_back({std::move(guard), Scope::current(), std::this_thread::get_id()});
  }

  void exit() {
    TORCH_CHECK(!open_.empty(),
                "[saved_tensors_hooks] expected to be entered before, got an exit without an "
                "enter. Use it in a with statement.");
    TORCH_CHECK(open_.back().is_innermost(),
                "[saved_tensors_hooks] expected to be left on its thread, after all regions and "
                "hooks that were entered inside it, got another order (a generator that was left "
                "in the middle?). Put the with statement around the whole.");
    open_.pop_back();
  }

  const py::tuple& parts() const { return parts_; }

 private:
  void check(size_t i, const char* name) const {
    const py::object part = parts_[i];
    TORCH_CHECK_TYPE(PyCallable_Check(part.ptr()), "[saved_tensors_hooks] ", name,
                     ": expected a function, got ", type_of(part.ptr()), ".");
  }

  struct Open {
    // A forked child has no scopes.
    bool is_innermost() const {
      const Scope* const innermost = Scope::current();
      return thread == std::this_thread::get_id() && (!innermost || innermost == scope);
    }

    std::unique_ptr<SavedTensorsHooksGuard> guard;
    const Scope* scope;
    std::thread::id thread;
  };

  py::tuple parts_;
  std::vector<Open> open_;  // the innermost last
};

py::object text_or_none(const std::string& text) {
  return text.empty() ? py::object(py::none()) : py::object(py::str(text));
}

/// (kind, region, call, context): the fields of SavedTensorInfo, with the kind as a number.
py::tuple saved_tensor_info() {
  const SavedTensorInfo& info = current_saved_tensor_info();
  const auto* const context = std::any_cast<SharedObject>(&info.context);
  return py::make_tuple(
      static_cast<int>(info.kind), text_or_none(info.region), text_or_none(info.call),
      context ? py::reinterpret_borrow<py::object>((*context)->get()) : py::object(py::none()));
}

/// The code objects of torch.utils.checkpoint's pack functions, which are created for each call.
std::vector<PyObject*>& codes_of_torch_checkpoint() {
  static auto& codes = *new std::vector<PyObject*>;
  return codes;
}

bool is_of_torch_checkpoint(const c10::SafePyObject& pack) {
  PyObject* const function = pack.ptr(&pack.pyinterpreter());
  if (!PyFunction_Check(function)) return false;
  const std::vector<PyObject*>& codes = codes_of_torch_checkpoint();
  return std::find(codes.begin(), codes.end(), PyFunction_GET_CODE(function)) != codes.end();
}

/// See Note [Checkpoints of PyTorch inside a region].
void find_codes_of_torch_checkpoint() {
  const auto checkpoint = py::module_::import("torch.utils.checkpoint");
  for (const char* const name : {"_checkpoint_hook", "_recomputation_hook"}) {
    const py::object code = checkpoint.attr(name).attr("__init__").attr("__code__");
    for (const py::handle constant : code.attr("co_consts")) {
      if (PyCode_Check(constant.ptr()))
        codes_of_torch_checkpoint().push_back(constant.inc_ref().ptr());
    }
  }
  set_recomputing_pair(&is_of_torch_checkpoint);
}

}  // namespace

PyObject* parts_of_hooks(PyObject* object) {
  if (!py::isinstance<HooksObject>(object)) return nullptr;
  return py::handle(object).cast<HooksObject&>().parts().inc_ref().ptr();
}

void add_saved_tensors_hooks(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  py::class_<HooksObject>(m, "saved_tensors_hooks", kSavedTensorsHooksDoc)
      .def(py::init<py::object, py::object, py::object>(), py::arg("pack"), py::arg("unpack"),
           py::kw_only(), py::arg("capture_context") = py::none())
      .def("__enter__", torch::wrap_pybind_function(&HooksObject::enter))
      .def("__exit__", torch::wrap_pybind_function(
                           [](HooksObject& self, const py::args& /*error*/) { self.exit(); }));
  m.def("_saved_tensor_info", torch::wrap_pybind_function(saved_tensor_info));
  find_codes_of_torch_checkpoint();
}

}  // namespace remat::python
