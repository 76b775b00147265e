// SPDX-License-Identifier: BSD-3-Clause

// Reads the attributes _raw_saved_* of nodes without unpacking the saved tensors.
#include "graph_saves.h"

#include <torch/csrc/autograd/python_cpp_function.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string_view>

namespace remat::python {
namespace {

using Visit = std::function<void(const at::Tensor&)>;

void visit_value(PyObject* value, const Visit& visit) {
  if (PyTuple_Check(value)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); ++i)
      visit_value(PyTuple_GET_ITEM(value, i), visit);
    return;
  }
  if (!py::isinstance<torch::autograd::SavedVariable>(value)) return;
  const auto& saved = py::handle(value).cast<const torch::autograd::SavedVariable&>();
  // nullopt if hooks keep it, undefined if it has been freed.
  const std::optional<at::Tensor> tensor = saved.get_raw_data();
  if (tensor && tensor->defined()) visit(*tensor);
}

bool is_raw_save(PyObject* name) {
  Py_ssize_t size = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(name, &size);
  constexpr std::string_view kPrefix = "_raw_saved_";
  return text &&
         std::string_view(text, static_cast<size_t>(size)).substr(0, kPrefix.size()) == kPrefix;
}

}  // namespace

// Some attributes of a freed node raise; such a node saves nothing.
void visit_saved(const GraphNode& node, const Visit& visit) {
  THPObjectPtr object(torch::autograd::functionToPyObject(node));
  THPObjectPtr names(object ? PyObject_Dir(reinterpret_cast<PyObject*>(Py_TYPE(object.get())))
                            : nullptr);
  for (Py_ssize_t i = 0; names && i < PyList_GET_SIZE(names.get()); ++i) {
    PyObject* const name = PyList_GET_ITEM(names.get(), i);
    if (!is_raw_save(name)) continue;
    THPObjectPtr value(PyObject_GetAttr(object, name));
    if (value) visit_value(value, visit);
    PyErr_Clear();
  }
  PyErr_Clear();
}

}  // namespace remat::python
