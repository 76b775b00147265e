// SPDX-License-Identifier: BSD-3-Clause

// Comparing dicts of hooks with what was in them before.
#include "tensor_hook_dicts.h"

#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include "owned_object.h"

namespace remat::python {

// A tensor that Python has never seen has no dicts.
void TensorHookDicts::watch(c10::ArrayRef<at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined() || !tensor.requires_grad()) continue;
    const PyObject* const object = tensor.unsafeGetTensorImpl()->pyobj_slot()->load_pyobj();
    if (!object) continue;
    const auto* const variable = reinterpret_cast<const THPVariable*>(object);
    add(variable->backward_hooks);
    add(variable->post_accumulate_grad_hooks);
  }
}

TensorHookDicts::~TensorHookDicts() {
  const ErrorAside error;
  for (auto& [hooks, before] : dicts_) {
    THPObjectPtr keys(PyDict_Keys(hooks));
    for (Py_ssize_t i = 0; keys && i < PyList_GET_SIZE(keys.get()); ++i) {
      PyObject* const key = PyList_GET_ITEM(keys.get(), i);
      if (PyDict_Contains(before, key) == 0) PyObject_DelItem(hooks, key);
    }
    PyErr_Clear();
  }
}

void TensorHookDicts::add(PyObject* hooks) {
  if (!hooks || !PyDict_Check(hooks)) return;
  THPObjectPtr before(PyDict_Copy(hooks));
  PyErr_Clear();
  if (before) dicts_.emplace_back(Py_NewRef(hooks), std::move(before));
}

}  // namespace remat::python
