// SPDX-License-Identifier: BSD-3-Clause

// Comparing dicts of hooks with what was in them before.
#include "tensor_hook_dicts.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include "owned_object.h"

namespace remat::python {
namespace {

/// Null for a tensor that Python has never seen.
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

Py_ssize_t size_of(PyObject* dict) {
  return dict ? PyDict_GET_SIZE(dict) : 0;
}

/// The keys of `dict` that `other` lacks, in order; `other` may be null.
std::vector<pybind11::object> keys_missing_in(PyObject* dict, PyObject* other) {
  std::vector<pybind11::object> missing;
  PyObject* key = nullptr;
  Py_ssize_t position = 0;
  while (dict && PyDict_Next(dict, &position, &key, nullptr)) {
    if (!other || PyDict_Contains(other, key) == 0)
      missing.push_back(pybind11::reinterpret_borrow<pybind11::object>(key));
  }
  return missing;
}

bool is_changed(PyObject* hooks, PyObject* before) {
  return size_of(hooks) != size_of(before) || !keys_missing_in(hooks, before).empty();
}

/// A function that takes its own old hook away and sets a new one leaves as many as there were, and
/// that stays. Others are taken back, and those that are missing come back.
void restore(PyObject* hooks, PyObject* before) {
  const auto added = keys_missing_in(hooks, before);
  const auto removed = keys_missing_in(before, hooks);
  for (size_t i = removed.size(); i < added.size(); ++i) PyObject_DelItem(hooks, added[i].ptr());
  for (size_t i = added.size(); i < removed.size(); ++i)
    PyObject_SetItem(hooks, removed[i].ptr(), PyDict_GetItemWithError(before, removed[i].ptr()));
}

}  // namespace

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
                [&](PyObject* hooks, PyObject* before) { any = any || is_changed(hooks, before); });
    if (any) changed.push_back(kept.tensor);
  }
}

bool TensorHookDicts::lost() const {
  const pybind11::gil_scoped_acquire gil;
  bool any = false;
  for (const Kept& kept : kept_) {
    visit_dicts(kept, [&](PyObject* hooks, PyObject* before) {
      any = any || size_of(hooks) < size_of(before);
    });
  }
  return any;
}

}  // namespace remat::python
