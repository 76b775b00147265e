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

/// Owns the result of a call; throws what it raised.
THPObjectPtr returned(PyObject* result) {
  if (!result) throw_python_error();
  return THPObjectPtr(result);
}

PyObject* object_in(const std::any& held) {
  return std::any_cast<const SharedObject&>(held)->get();
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

}  // namespace

SavedTensorsHooks make_saved_tensors_hooks(SharedObject pack, SharedObject unpack,
                                           SharedObject capture_context) {
  SavedTensorsHooks hooks;
  hooks.pack = [pack = std::move(pack)](const at::Tensor& tensor) -> std::any {
    const pybind11::gil_scoped_acquire gil;
    THPObjectPtr argument = returned(THPVariable_Wrap(tensor));
    THPObjectPtr packed = returned(PyObject_CallOneArg(pack->get(), argument));
    return share(packed);
  };
  hooks.unpack = [unpack = std::move(unpack)](const std::any& packed) -> at::Tensor {
    const pybind11::gil_scoped_acquire gil;
    THPObjectPtr tensor = returned(PyObject_CallOneArg(unpack->get(), object_in(packed)));
    TORCH_CHECK_TYPE(THPVariable_Check(tensor),
                     "[saved_tensors_hooks] unpack: expected it to return a Tensor, got ",
                     Py_TYPE(tensor.get())->tp_name, ".");
    return THPVariable_Unpack(tensor.get());
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
