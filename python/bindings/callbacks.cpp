// SPDX-License-Identifier: BSD-3-Clause

// Calls from C++ into Python.
#include "callbacks.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <any>
#include <utility>

#include "errors.h"

namespace remat::python {
namespace {

/// Takes ownership of a call's result; throws the error that the call raised.
THPObjectPtr returned(PyObject* result) {
  if (!result) throw_python_error();
  return THPObjectPtr(result);
}

PyObject* object_in(const std::any& held) {
  return std::any_cast<const SharedObject&>(held)->get();
}

/// Wraps `tensor` with the Python class and attributes of `original`: a Parameter stays one.
THPObjectPtr wrap_like(const at::Tensor& tensor, const at::Tensor& original) {
  // A tensor without a Python object is a plain tensor; do not create an object for it.
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
    const pybind11::gil_scoped_acquire gil;
    THPObjectPtr state = returned(PyObject_CallMethod(hook_->get(), "snapshot", nullptr));
    return share(state);
  }

  void restore(const std::any& state) override {
    const pybind11::gil_scoped_acquire gil;
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
    const pybind11::gil_scoped_acquire gil;
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
    const pybind11::gil_scoped_acquire gil;
    THPObjectPtr argument = returned(THPVariable_Wrap(tensor));
    THPObjectPtr ticket = returned(PyObject_CallMethod(store_->get(), "put", "O", argument.get()));
    TORCH_CHECK_VALUE(PyObject_HasAttrString(ticket, "get"),
                      "[OffloadStore] put: expected it to return a ticket with get(), got ",
                      type_of(ticket.get()), ". Raise if it cannot store the tensor.");
    return std::make_shared<PythonTicket>(share(ticket));
  }

  bool is_exact() const override {
    const pybind11::gil_scoped_acquire gil;
    const pybind11::handle store(store_->get());
    return !pybind11::hasattr(store, "is_exact") || pybind11::bool_(store.attr("is_exact"));
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
    const pybind11::gil_scoped_acquire gil;
    THPObjectPtr argument = wrap_like(tensor, *current_saved_tensor_info().original);
    THPObjectPtr packed = returned(PyObject_CallOneArg(pack->get(), argument));
    return share(packed);
  };
  hooks.unpack = [unpack = std::move(unpack)](const std::any& packed) -> at::Tensor {
    const pybind11::gil_scoped_acquire gil;
    THPObjectPtr tensor = returned(PyObject_CallOneArg(unpack->get(), object_in(packed)));
    return as_tensor(tensor, "[saved_tensors_hooks] unpack");
  };
  if (!capture_context) return hooks;
  hooks.capture_context = [capture = std::move(capture_context)]() -> std::any {
    const pybind11::gil_scoped_acquire gil;
    THPObjectPtr context = returned(PyObject_CallNoArgs(capture->get()));
    return share(context);
  };
  return hooks;
}

std::shared_ptr<StateHook> make_state_hook(SharedObject hook) {
  return std::make_shared<PythonStateHook>(std::move(hook));
}

}  // namespace remat::python
