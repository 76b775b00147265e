// SPDX-License-Identifier: BSD-3-Clause

// Policies, policy tables and policy functions of Python.
#include "policy_table.h"

#include <c10/util/Exception.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/pythoncapi_compat.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

#include <array>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include <remat/engine/op_call.h>

#include "docstrings.h"
#include "errors.h"

namespace remat::python {
namespace {

constexpr std::array kPolicies{Policy::kSave, Policy::kRecompute, Policy::kOffload};
std::array<PyObject*, kPolicies.size()> objects{};  // in the order of kPolicies

/// Returns the name of remat's member that means the same as `object`, a member of torch's enum
/// CheckpointPolicy; null for other objects.
const char* meant_by(PyObject* object) {
  if (std::strcmp(Py_TYPE(object)->tp_name, "CheckpointPolicy") != 0) return nullptr;
  THPObjectPtr name(PyObject_GetAttrString(object, "name"));
  const char* const text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : nullptr;
  PyErr_Clear();
  if (!text) return nullptr;
  return std::strstr(text, "SAVE") ? "SAVE" : "RECOMPUTE";
}

}  // namespace

void set_policy_objects(PyObject* const* members) {
  for (size_t i = 0; i < objects.size(); ++i) objects[i] = Py_NewRef(members[i]);
}

Policy policy_of(const char* where, PyObject* object) {
  for (size_t i = 0; i < objects.size(); ++i) {
    if (objects[i] == object) return kPolicies[i];
  }
  const char* const meant = meant_by(object);
  TORCH_CHECK(!meant, "[", where, "] policy: expected a remat_meta.CheckpointPolicy, got ",
              type_of(object), ". Pass remat_meta.CheckpointPolicy.", meant ? meant : "", ".");
  TORCH_CHECK(false, "[", where, "] policy: expected a CheckpointPolicy, got ", type_of(object),
              ". Pass CheckpointPolicy.SAVE, RECOMPUTE or OFFLOAD.");
}

PyObject* object_of(Policy policy) {
  for (size_t i = 0; i < objects.size(); ++i) {
    if (kPolicies[i] == policy) return objects[i];
  }
  return Py_None;
}

namespace {

/// Returns a rule's pattern for a string, or for an op such as torch.ops.aten.mm or
/// aten.mm.default.
std::string pattern_of(const py::handle& object) {
  const bool is_text = py::isinstance<py::str>(object);
  const std::string type = Py_TYPE(object.ptr())->tp_name;
  TORCH_CHECK_TYPE(is_text || type == "OpOverload" || type == "OpOverloadPacket",
                   "[PolicyTable] op: expected a string such as \"aten::mm\" or an op such as "
                   "torch.ops.aten.mm, got ",
                   type_of(object.ptr()), ".");
  return py::str(object).cast<std::string>();
}

Policy policy_in(const py::object& policy) {
  return policy_of("PolicyTable", policy.ptr());
}

std::string show(const PolicyTable& table) {
  std::string text = "PolicyTable with " + std::to_string(table.rules().size()) + " rules";
  for (const PolicyRule& rule : table.rules()) text += "\n  " + rule.str();
  return text;
}

/// Converts an argument by its type, because dtypes, layouts and memory formats are numbers in C++.
py::object python_value(const c10::Argument& argument, const c10::IValue& value) {
  const c10::TypePtr& type = argument.real_type();
  const auto optional = type->cast<c10::OptionalType>();
  if (value.isInt()) {
    const int64_t number = value.toInt();
    const auto borrowed = [](auto* object) {
      return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(object));
    };
    switch ((optional ? optional->getElementType() : type)->kind()) {
      case c10::TypeKind::ScalarTypeType:
        return borrowed(torch::getTHPDtype(static_cast<at::ScalarType>(number)));
      case c10::TypeKind::LayoutType:
        return borrowed(torch::getTHPLayout(static_cast<at::Layout>(number)));
      case c10::TypeKind::MemoryFormatType:
        return borrowed(torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(number)));
      default:
        break;
    }
  }
  return torch::jit::toPyObject(value);
}

/// Returns the arguments that a Python caller would pass, without those that equal their default.
std::pair<py::list, py::dict> python_arguments(const OpCall& call) {
  const c10::FunctionSchema& schema = call.info().op().schema();
  py::list positional;
  py::dict keywords;
  size_t end = call.info().argument_count();
  const auto has_default = [&](size_t i) {
    const auto& value = schema.arguments()[i].default_value();
    return value && *value == call.argument(i);
  };
  size_t first_keyword = 0;
  while (first_keyword < end && !schema.arguments()[first_keyword].kwarg_only()) ++first_keyword;
  size_t last = first_keyword;
  while (last > 0 && has_default(last - 1)) --last;
  for (size_t i = 0; i < last; ++i)
    positional.append(python_value(schema.arguments()[i], call.argument(i)));
  for (size_t i = first_keyword; i < end; ++i) {
    if (!has_default(i))
      keywords[schema.arguments()[i].name().c_str()] =
          python_value(schema.arguments()[i], call.argument(i));
  }
  return {std::move(positional), std::move(keywords)};
}

PyObject* policy_caller() {
  static PyObject* found = nullptr;  // Note [Imports and the GIL]
  if (!found) found = imported("remat_meta._policy", "call_policy_function");
  return found;
}

PolicyFunction make_function(SharedObject function) {
  return [function = std::move(function)](const PolicyQuery& query) -> std::optional<Policy> {
    const py::gil_scoped_acquire gil;
    auto [positional, keywords] = python_arguments(query.op);
    const py::handle op = torch::detail::getTorchApiFunction(query.op.info().op());
    const py::str call(query.call.data(), query.call.size());
    THPObjectPtr answer(PyObject_CallFunctionObjArgs(
        policy_caller(), function->get(), call.ptr(), query.is_recompute ? Py_True : Py_False,
        op.ptr(), positional.ptr(), keywords.ptr(), nullptr));
    if (!answer) throw_python_error();
    if (answer.get() == Py_None) return std::nullopt;
    return policy_of("policy", answer);
  };
}

std::shared_ptr<const RegionPolicy> make_from(PyObject* value, SharedObject& keep) {
  const py::handle object(value);
  if (py::isinstance<PolicyTable>(object)) return make_policy(object.cast<const PolicyTable&>());
  if (py::isinstance<py::str>(object)) return make_policy(preset(object.cast<std::string>()));
  if (PyList_Check(value) || PyTuple_Check(value)) {
    PolicyTable table;
    for (const py::handle op : object) table.op(pattern_of(op), Policy::kSave);
    return make_policy(std::move(table));
  }
  TORCH_CHECK_TYPE(PyCallable_Check(value),
                   "[checkpoint] policy: expected a PolicyTable, the name of a preset, a list of "
                   "ops to SAVE, or a function (context, op, *args, **kwargs), got ",
                   type_of(value), ".");
  keep = share(value);
  return make_policy({}, make_function(keep));
}

}  // namespace

std::shared_ptr<const RegionPolicy> make_region_policy(PyObject* value, SharedObject& keep) {
  try {
    return make_from(value, keep);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

void add_policy_table(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  py::class_<PolicyTable>(m, "PolicyTable", kPolicyTableDoc)
      .def(py::init<>())
      .def(
          "op",
          [](PolicyTable& self, const py::object& op, const py::object& policy) -> PolicyTable& {
            return self.op(pattern_of(op), policy_in(policy));
          },
          py::arg("op"), py::arg("policy"), py::return_value_policy::reference)
      .def(
          "call",
          [](PolicyTable& self, std::string name, const py::object& policy) -> PolicyTable& {
            return self.call(std::move(name), policy_in(policy));
          },
          py::arg("name"), py::arg("policy"), py::return_value_policy::reference)
      .def("add", &PolicyTable::add, py::arg("table"), py::return_value_policy::reference)
      .def("explain", &PolicyTable::explain, py::arg("call"))
      .def("to_json", &PolicyTable::to_json)
      .def_static("from_json", &PolicyTable::from_json, py::arg("text"),
                  py::arg("source") = "policy")
      .def_static("load", &PolicyTable::load, py::arg("path"))
      .def("__copy__", [](const PolicyTable& self) { return PolicyTable(self); })
      .def("__deepcopy__",
           [](const PolicyTable& self, const py::object& /*memo*/) { return PolicyTable(self); })
      .def("__len__", [](const PolicyTable& self) { return self.rules().size(); })
      .def("__repr__", show)
      .def(py::pickle([](const PolicyTable& self) { return py::make_tuple(self.to_json()); },
                      [](const py::tuple& state) {
                        return PolicyTable::from_json(state[0].cast<std::string>(), "pickle");
                      }));
  m.def("save_matmuls", &save_matmuls, kSaveMatmulsDoc);
  m.def("save_compute_intensive", &save_compute_intensive, kSaveComputeIntensiveDoc);
  m.def("recompute_pointwise", &recompute_pointwise, kRecomputePointwiseDoc);
  m.def("safe_defaults", &safe_defaults, kSafeDefaultsDoc);
}

}  // namespace remat::python
