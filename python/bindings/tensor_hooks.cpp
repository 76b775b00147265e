// SPDX-License-Identifier: BSD-3-Clause

// Compares torch's dicts of hooks with their earlier contents, and sets the id of the next handle.
#include "tensor_hooks.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_hook.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <algorithm>
#include <string_view>
#include <typeinfo>

#include <remat/engine/hook_count.h>

#include "errors.h"
#include "owned_object.h"

namespace remat::python {
namespace {

thread_local uint64_t in_forward_only = 0;  // number of SAVE calls that made handles

PyObject* handle_class() {
  static PyObject* found = nullptr;  // guarded by the GIL
  if (!found) found = imported("torch.utils.hooks", "RemovableHandle");
  return found;
}

PyObject* next_id() {
  static PyObject* const name = PyUnicode_InternFromString("next_id");
  return name;
}

void set_next(int64_t id) {
  THPObjectPtr number(PyLong_FromLongLong(id));
  if (!number || PyObject_SetAttr(handle_class(), next_id(), number) < 0) throw python_error();
}

/// Null for a tensor without a Python object.
const THPVariable* variable_of(const at::Tensor& tensor) {
  const PyObject* const object = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
  return reinterpret_cast<const THPVariable*>(object);
}

PyObject* dict_or_null(PyObject* hooks) {
  return hooks && PyDict_Check(hooks) ? hooks : nullptr;
}

pybind11::object copy_of(PyObject* hooks) {
  return pybind11::reinterpret_steal<pybind11::object>(dict_or_null(hooks) ? PyDict_Copy(hooks)
                                                                           : nullptr);
}

/// True if both dicts have the same hooks in the same order; either dict may be null.
bool is_same(PyObject* hooks, PyObject* before) {
  const auto size = [](PyObject* dict) { return dict ? PyDict_GET_SIZE(dict) : 0; };
  if (size(hooks) != size(before)) return false;
  if (size(hooks) == 0) return true;
  PyObject *key = nullptr, *hook = nullptr, *key_before = nullptr, *hook_before = nullptr;
  Py_ssize_t i = 0, j = 0;
  while (PyDict_Next(hooks, &i, &key, &hook) &&
         PyDict_Next(before, &j, &key_before, &hook_before)) {
    if (hook != hook_before || PyObject_RichCompareBool(key, key_before, Py_EQ) != 1) return false;
  }
  return true;
}

/// True if `hooks` lacks a key of `before`. A hook that the function replaces keeps its key,
/// because handles keep their ids: see Note [Handles of hooks].
bool lacks(PyObject* hooks, PyObject* before) {
  PyObject* key = nullptr;
  Py_ssize_t i = 0;
  while (before && PyDict_Next(before, &i, &key, nullptr)) {
    if (!hooks || PyDict_Contains(hooks, key) != 1) return true;
  }
  return false;
}

void restore(PyObject* hooks, PyObject* before) {
  if (!hooks || is_same(hooks, before)) return;
  // Use OrderedDict's own methods, because changes through the dict API would lose the order.
  Py_XDECREF(PyObject_CallMethod(hooks, "clear", nullptr));
  if (before) Py_XDECREF(PyObject_CallMethod(hooks, "update", "O", before));
}

size_t size_of(PyObject* hooks) {
  const pybind11::gil_scoped_acquire gil;
  return dict_or_null(hooks) ? static_cast<size_t>(PyDict_GET_SIZE(hooks)) : 1;
}

/// Returns `hook` as a Dict; null if it is of another class. Compares type names, since
/// dynamic_cast does not work on these classes, which torch does not export.
template <class Dict, class Hook>
const Dict* as(const Hook& hook, std::string_view class_name) {
  return typeid(hook).name() == class_name ? static_cast<const Dict*>(&hook) : nullptr;
}

HookCount count_gradient(const torch::autograd::FunctionPreHook& hook) {
  const auto* const all = as<torch::autograd::PyFunctionTensorPreHook>(
      hook, "N5torch8autograd23PyFunctionTensorPreHookE");
  return all ? HookCount{size_of(all->dict), all->value_idx} : HookCount{1, std::nullopt};
}

size_t count_accumulated(const torch::autograd::PostAccumulateGradHook& hook) {
  const auto* const all = as<torch::autograd::PyFunctionTensorPostAccGradHooks>(
      hook, "N5torch8autograd32PyFunctionTensorPostAccGradHooksE");
  return all ? size_of(all->dict) : 1;
}

}  // namespace

HookHandleIds::HookHandleIds() : first_(next()), in_forward_only_(in_forward_only) {}

void HookHandleIds::finish_forward() {
  needed_ = next() != first_ && in_forward_only == in_forward_only_;
}

int64_t HookHandleIds::next() {
  THPObjectPtr number(PyObject_GetAttr(handle_class(), next_id()));
  const int64_t id = number ? PyLong_AsLongLong(number) : -1;
  if (id < 0 && PyErr_Occurred()) throw python_error();
  return id;
}

void HookHandleIds::note_in_forward_only() {
  ++in_forward_only;
}

HookHandleIdsAgain::HookHandleIdsAgain(const HookHandleIds& forward) {
  if (!forward.needed_) return;
  present_ = HookHandleIds::next();
  set_next(forward.first_);
}

HookHandleIdsAgain::~HookHandleIdsAgain() {
  if (present_ < 0) return;
  const ErrorAside error;
  try {
    set_next(std::max(present_, HookHandleIds::next()));
  } catch (python_error&) {
    PyErr_WriteUnraisable(handle_class());
  }
}

void count_hooks_in_dicts() {
  set_hook_counters(&count_gradient, &count_accumulated);
}

TensorHookDicts::TensorHookDicts(c10::ArrayRef<at::Tensor> tensors) {
  kept_.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) {
    const THPVariable* const variable = variable_of(tensor);
    kept_.push_back({tensor, copy_of(variable ? variable->backward_hooks : nullptr),
                     copy_of(variable ? variable->post_accumulate_grad_hooks : nullptr)});
  }
  PyErr_Clear();
}

template <class Visit>
void TensorHookDicts::visit_dicts(const Kept& kept, Visit&& visit) {
  const THPVariable* const variable = variable_of(kept.tensor);
  if (!variable) return;
  visit(dict_or_null(variable->backward_hooks), kept.gradient.ptr());
  visit(dict_or_null(variable->post_accumulate_grad_hooks), kept.accumulated.ptr());
}

TensorHookDicts::~TensorHookDicts() {
  const pybind11::gil_scoped_acquire gil;
  const ErrorAside error;
  for (const Kept& kept : kept_) {
    visit_dicts(kept, restore);
    PyErr_Clear();
  }
  kept_.clear();
}

void TensorHookDicts::append_changed(std::vector<at::Tensor>& changed) const {
  const pybind11::gil_scoped_acquire gil;
  for (const Kept& kept : kept_) {
    bool any = false;
    visit_dicts(kept,
                [&](PyObject* hooks, PyObject* before) { any = any || !is_same(hooks, before); });
    if (any) changed.push_back(kept.tensor);
  }
}

bool TensorHookDicts::lost() const {
  const pybind11::gil_scoped_acquire gil;
  bool any = false;
  for (const Kept& kept : kept_) {
    visit_dicts(kept,
                [&](PyObject* hooks, PyObject* before) { any = any || lacks(hooks, before); });
  }
  return any;
}

}  // namespace remat::python
