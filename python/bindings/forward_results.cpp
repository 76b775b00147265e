// SPDX-License-Identifier: BSD-3-Clause

// Reads and writes a ctx by its Python attributes.
#include "forward_results.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <memory>
#include <utility>

#include "errors.h"
#include "named_calls.h"

namespace remat::python {
namespace {

/// add_marks() makes this the holder of a CallResults. Marked results are given by their indices.
struct MarkedResults {
  std::shared_ptr<const void> holder;  // made by take_apart()
  std::vector<size_t> dirty;
  std::vector<size_t> not_differentiable;
};

/// Indices of the results that are in the tuple ctx.`attribute`.
std::vector<size_t> positions(PyObject* ctx, const char* attribute, const CallResults& results) {
  std::vector<size_t> found;
  THPObjectPtr marked(PyObject_GetAttrString(ctx, attribute));
  if (!marked) PyErr_Clear();
  if (!marked || !PyTuple_Check(marked.get())) return found;
  for (const auto i : c10::irange(results.tensors.size())) {
    for (const auto j : c10::irange(PyTuple_GET_SIZE(marked.get()))) {
      PyObject* const tensor = PyTuple_GET_ITEM(marked.get(), j);
      if (!THPVariable_Check(tensor) || !THPVariable_Unpack(tensor).is_same(results.tensors[i]))
        continue;
      found.push_back(i);
      break;
    }
  }
  return found;
}

void mark(PyObject* ctx, const char* method, const std::vector<size_t>& which,
          const CallResults& results) {
  if (which.empty()) return;
  THPObjectPtr tensors(checked(PyTuple_New(static_cast<Py_ssize_t>(which.size()))));
  for (const auto i : c10::irange(which.size()))
    PyTuple_SET_ITEM(tensors.get(), i, checked(THPVariable_Wrap(results.tensors[which[i]])));
  THPObjectPtr function(checked(PyObject_GetAttrString(ctx, method)));
  THPObjectPtr done(checked(PyObject_CallObject(function, tensors)));
}

int64_t number_of(PyObject* object, const char* attribute) {
  THPObjectPtr value(checked(PyObject_GetAttrString(object, attribute)));
  const long number = PyLong_AsLong(value);
  if (number == -1 && PyErr_Occurred()) throw python_error();
  return number;
}

void check_name(const std::string& name, const std::string& where) {
  TORCH_CHECK_VALUE(!name.empty(), where,
                    ": name: expected names of saved tensors that are not empty: they must be "
                    "non-empty, got an empty one. Name the tensor after what it is.");
  TORCH_CHECK(name.find('.') == std::string::npos, where, ": name '", name,
              "': expected a name without a dot, which reports put between call and tensor, got "
              "one with it. Take the dot away.");
}

}  // namespace

std::vector<at::Tensor> tensors_of_forward(PyObject* ctx) {
  std::vector<at::Tensor> tensors;
  PyFrameObject* const frame = PyEval_GetFrame();
  if (!frame) return tensors;
  THPObjectPtr locals(
      checked(PyObject_GetAttrString(reinterpret_cast<PyObject*>(frame), "f_locals")));
  THPObjectPtr code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  THPObjectPtr names(checked(PyObject_GetAttrString(code, "co_varnames")));
  const bool has_rest = (number_of(code, "co_flags") & CO_VARARGS) != 0;
  const int64_t count =
      number_of(code, "co_argcount") + number_of(code, "co_kwonlyargcount") + (has_rest ? 1 : 0);
  for (const auto i : c10::irange(count)) {
    THPObjectPtr value(PyObject_GetItem(locals, PyTuple_GET_ITEM(names.get(), i)));
    if (!value) PyErr_Clear();  // the variable was deleted, or an inner function captures it
    if (i == 0 && value.get() != ctx) break;
    if (value && i > 0) take_output(value, OutputRule::kAnyLeaf, {}, tensors);
  }
  return tensors;
}

NamedTensors save_named(PyObject* ctx, PyObject* named, const std::string& where) {
  TORCH_CHECK_TYPE(PyDict_Check(named), where, ": tensors: expected a dict {name: tensor}, got ",
                   type_of(named), ".");
  NamedTensors saved;
  Py_ssize_t position = 0;
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  while (PyDict_Next(named, &position, &key, &value)) {
    TORCH_CHECK(PyUnicode_Check(key), where, ": name: expected a string, got ", type_of(key), ".");
    const char* const name = PyUnicode_AsUTF8(key);
    if (!name) throw python_error();
    check_name(name, where);
    const bool is_tensor = THPVariable_Check(value);
    TORCH_CHECK(is_tensor || value == Py_None, where, ": tensor '", name,
                "': expected a Tensor or None, got ", type_of(value),
                ". Set other values as attributes of ctx.");
    saved.names.emplace_back(name);
    saved.tensors.push_back(is_tensor ? THPVariable_Unpack(value) : at::Tensor());
  }
  THPObjectPtr function(checked(PyObject_GetAttrString(ctx, "save_for_backward")));
  THPObjectPtr values(checked(PyDict_Values(named)));
  THPObjectPtr tensors(checked(PyList_AsTuple(values)));
  THPObjectPtr done(checked(PyObject_CallObject(function, tensors)));
  return saved;
}

std::vector<at::Tensor> saved_by(PyObject* ctx) {
  std::vector<at::Tensor> tensors;
  THPObjectPtr saved(checked(PyObject_GetAttrString(ctx, "to_save")));
  if (!PyTuple_Check(saved.get())) return tensors;
  for (const auto i : c10::irange(PyTuple_GET_SIZE(saved.get()))) {
    PyObject* const item = PyTuple_GET_ITEM(saved.get(), i);
    tensors.push_back(THPVariable_Check(item) ? THPVariable_Unpack(item) : at::Tensor());
  }
  return tensors;
}

// After forward(), autograd looks at the results, reserves space for all saved tensors, and then
// saves them one by one. If no result requires grad, autograd saves nothing. If forward() raises,
// autograd destroys the node, unless somebody else holds the node.
SavingState saving_of(PyObject* ctx) {
  if (!THPFunction_Check(ctx)) return nullptr;
  const auto& function = *reinterpret_cast<const THPFunction*>(ctx);
  const WeakNodePtr of = node_of(function);
  const NodePtr itself = of.lock();
  if (!itself || itself->num_outputs() == 0) return [] { return Saving{Saving::State::kDone}; };
  return [of]() -> Saving {
    const NodePtr node = of.lock();
    if (!node) return {Saving::State::kDone};
    const THPFunction& saving = ctx_of(*node);
    const bool is_freed = saving.has_freed_buffers || has_given_saved(saving);
    const size_t position = saving.saved_variables.size();
    const size_t count = saving.saved_variables.capacity();
    if (!is_freed && position < count) return {Saving::State::kNow, position, count};
    const bool may_save = !is_freed && saving.output_info.empty();
    return {may_save ? Saving::State::kNotYet : Saving::State::kDone};
  };
}

void add_marks(CallResults& results, PyObject* ctx) {
  auto marked = std::make_shared<MarkedResults>();
  marked->holder = std::move(results.holder);
  marked->dirty = positions(ctx, "dirty_tensors", results);
  marked->not_differentiable = positions(ctx, "non_differentiable", results);
  results.holder = std::move(marked);
}

PyObject* load_marked(const CallResults& results, PyObject* ctx) {
  const auto& marked = *static_cast<const MarkedResults*>(results.holder.get());
  mark(ctx, "mark_dirty", marked.dirty, results);
  mark(ctx, "mark_non_differentiable", marked.not_differentiable, results);
  return checked(put_together({.tensors = results.tensors, .holder = marked.holder}));
}

}  // namespace remat::python
