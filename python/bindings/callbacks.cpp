// SPDX-License-Identifier: BSD-3-Clause

// Calls from C++ into Python, and Python's saved_tensors_hooks.
#include "callbacks.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <algorithm>
#include <any>
#include <thread>
#include <utility>
#include <vector>

#include <remat/backend/saved_tensors_hooks_guard.h>
#include <remat/engine/saved_tensors_hooks.h>
#include <remat/engine/scope.h>

#include "bindings.h"
#include "docstrings.h"
#include "errors.h"

namespace remat::python {
namespace {

/// Takes ownership of the result of a Python call. Throws the error of a call that raised.
THPObjectPtr returned(PyObject* result) {
  if (!result) throw_python_error();
  return THPObjectPtr(result);
}

PyObject* object_in(const std::any& held) {
  return std::any_cast<const SharedObject&>(held)->get();
}

/// Wraps `tensor` with the class and attributes of `original`, so that Parameters stay Parameters.
THPObjectPtr wrap_like(const at::Tensor& tensor, const at::Tensor& original) {
  // Without a Python object, `original` has no class or attributes to copy, so create no object.
  if (!original.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj())
    return returned(THPVariable_Wrap(tensor));
  THPObjectPtr first = returned(THPVariable_Wrap(original));
  PyTypeObject* const type = Py_TYPE(first.get());
  const bool is_plain = type == reinterpret_cast<PyTypeObject*>(THPVariableClass) ||
                        tensor.key_set().has(c10::DispatchKey::Python);
  THPObjectPtr made =
      returned(is_plain ? THPVariable_Wrap(tensor) : THPVariable_Wrap(tensor, type));
  THPObjectPtr attributes = returned(PyObject_GenericGetDict(first, nullptr));
  if (PyDict_GET_SIZE(attributes.get()) == 0) return made;
  THPObjectPtr copied = returned(PyObject_GenericGetDict(made, nullptr));
  if (PyDict_Merge(copied, attributes, /*override=*/0) < 0) throw_python_error();
  return made;
}

class PythonStateHook final : public StateHook {
 public:
  explicit PythonStateHook(SharedObject hook) : hook_(std::move(hook)) {}

  std::any snapshot() override {
    const py::gil_scoped_acquire gil;
    THPObjectPtr state = returned(PyObject_CallMethod(hook_->get(), "snapshot", nullptr));
    return share(state);
  }

  void restore(const std::any& state) override {
    const py::gil_scoped_acquire gil;
    returned(PyObject_CallMethod(hook_->get(), "restore", "(O)", object_in(state)));
  }

 private:
  SharedObject hook_;
};

at::Tensor as_tensor(PyObject* object, const char* where) {
  TORCH_CHECK_TYPE(THPVariable_Check(object), where, ": expected it to return a Tensor, got ",
                   type_of(object), ".");
  return THPVariable_Unpack(object);
}

class PythonTicket final : public OffloadStore::Ticket {
 public:
  explicit PythonTicket(SharedObject ticket) : ticket_(std::move(ticket)) {}

  at::Tensor get() override {
    const py::gil_scoped_acquire gil;
    THPObjectPtr tensor = returned(PyObject_CallMethod(ticket_->get(), "get", nullptr));
    return as_tensor(tensor, "[OffloadStore] get");
  }

 private:
  SharedObject ticket_;
};

class PythonOffloadStore final : public OffloadStore {
 public:
  explicit PythonOffloadStore(SharedObject store) : store_(std::move(store)) {}

  std::shared_ptr<Ticket> put(const at::Tensor& tensor) override {
    const py::gil_scoped_acquire gil;
    THPObjectPtr argument = returned(THPVariable_Wrap(tensor));
    THPObjectPtr ticket = returned(PyObject_CallMethod(store_->get(), "put", "O", argument.get()));
    TORCH_CHECK_VALUE(PyObject_HasAttrString(ticket, "get"),
                      "[OffloadStore] put: expected it to return a ticket with get(), got ",
                      type_of(ticket.get()), ". Raise if it cannot store the tensor.");
    return std::make_shared<PythonTicket>(share(ticket));
  }

  bool is_exact() const override {
    const py::gil_scoped_acquire gil;
    const py::handle store(store_->get());
    return !py::hasattr(store, "is_exact") || py::bool_(store.attr("is_exact"));
  }

 private:
  SharedObject store_;
};

}  // namespace

std::shared_ptr<OffloadStore> make_offload_store(SharedObject store) {
  return std::make_shared<PythonOffloadStore>(std::move(store));
}

SavedTensorsHooks make_saved_tensors_hooks(SharedObject pack, SharedObject unpack,
                                           SharedObject capture_context) {
  SavedTensorsHooks hooks;
  hooks.pack = [pack = std::move(pack)](const at::Tensor& tensor) -> std::any {
    const py::gil_scoped_acquire gil;
    THPObjectPtr argument = wrap_like(tensor, *current_saved_tensor_info().original);
    THPObjectPtr packed = returned(PyObject_CallOneArg(pack->get(), argument));
    return share(packed);
  };
  hooks.unpack = [unpack = std::move(unpack)](const std::any& packed) -> at::Tensor {
    const py::gil_scoped_acquire gil;
    THPObjectPtr tensor = returned(PyObject_CallOneArg(unpack->get(), object_in(packed)));
    return as_tensor(tensor, "[saved_tensors_hooks] unpack");
  };
  if (!capture_context) return hooks;
  hooks.capture_context = [capture = std::move(capture_context)]() -> std::any {
    const py::gil_scoped_acquire gil;
    THPObjectPtr context = returned(PyObject_CallNoArgs(capture->get()));
    return share(context);
  };
  return hooks;
}

std::shared_ptr<StateHook> make_state_hook(SharedObject hook) {
  return std::make_shared<PythonStateHook>(std::move(hook));
}

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
  // Leaks a guard whose scope is not innermost, because the scopes inside that scope refer to it.
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
    // Also true without any scope, as in a forked child, because then none is open inside this one.
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

/// Returns (kind, region, call, context), the fields of SavedTensorInfo with the kind as a number.
py::tuple saved_tensor_info() {
  const SavedTensorInfo& info = current_saved_tensor_info();
  const auto* const context = std::any_cast<SharedObject>(&info.context);
  return py::make_tuple(
      static_cast<int>(info.kind), text_or_none(info.region), text_or_none(info.call),
      context ? py::reinterpret_borrow<py::object>((*context)->get()) : py::object(py::none()));
}

/// The code objects of torch.utils.checkpoint's pack functions. They identify these functions,
/// because torch.utils.checkpoint makes new function objects in each call.
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
