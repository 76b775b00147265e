// SPDX-License-Identifier: BSD-3-Clause

// The Python functions around named calls.
#include "named_calls.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/backend/name_scope.h>
#include <remat/backend/named_call_scope.h>
#include <remat/backend/native_op.h>

#include "docstrings.h"
#include "function_wrapper.h"
#include "named_call_run.h"

namespace remat::python {
namespace {

PyTypeObject* named_type = nullptr;
std::array<PyObject*, 3> policies{};  // members of CheckpointPolicy, in the order of kPolicies
constexpr std::array kPolicies{Policy::kSave, Policy::kRecompute, Policy::kOffload};

class NamedState final : public WrapperState {
 public:
  NamedState(NamedCall named) : call(std::move(named)) {}

  PyObject* reduce(PyObject* function) const override {
    THPObjectPtr module(PyImport_ImportModule("remat_meta._C"));
    THPObjectPtr native_op(module ? PyObject_GetAttrString(module, "native_op") : nullptr);
    if (!native_op) return nullptr;
    return Py_BuildValue("O(OsOs)", native_op.get(), function, call.name.c_str(), policy_object(),
                         call.keep == Keep::kAllRegions ? "all_regions" : "innermost_region");
  }

  PyObject* show() const override { return PyUnicode_FromString(call.str().c_str()); }

  const NamedCall call;

 private:
  PyObject* policy_object() const {
    for (size_t i = 0; i < kPolicies.size(); ++i) {
      if (kPolicies[i] == call.policy) return policies[i];
    }
    return Py_None;
  }
};

PyObject* call_named(PyObject* object, PyObject* const* values, size_t flags, PyObject* keywords) {
  HANDLE_TH_ERRORS
  const std::shared_ptr<const WrapperState> state = state_of(object);
  THPObjectPtr function(Py_XNewRef(function_of(object)));
  TORCH_CHECK(state && function, "[native_op] this object has been cleared");
  return run_named_call(static_cast<const NamedState&>(*state).call, function,
                        arguments_of(values, flags, keywords));
  END_HANDLE_TH_ERRORS
}

std::string type_of(PyObject* value) {
  return Py_TYPE(value)->tp_name;
}

PyObject* make_named(const char* where, PyObject* function, PyObject* name, Policy policy,
                     Keep keep) {
  TORCH_CHECK(PyCallable_Check(function), "[", where, "] fn: ", where,
              " expects a function as its first argument, got ", type_of(function), ".");
  TORCH_CHECK(PyUnicode_Check(name), "[", where, "] name: expected a string, got ", type_of(name),
              ".");
  const char* const text = PyUnicode_AsUTF8(name);
  if (!text) throw python_error();
  NamedCall call{.name = text, .policy = policy, .keep = keep, .saved_names = {}};
  detail::check_call_name(call, where);
  return make_wrapper(named_type, call_named, std::make_shared<const NamedState>(std::move(call)),
                      function);
}

Keep as_keep(const char* where, const char* keep) {
  const std::string_view text = keep;
  TORCH_CHECK_VALUE(text == "innermost_region" || text == "all_regions", "[", where,
                    "] keep: expected \"innermost_region\" or \"all_regions\", got \"", text,
                    "\".");
  return text == "all_regions" ? Keep::kAllRegions : Keep::kInnermostRegion;
}

// torch_remat's programs expect RuntimeError for wrong values of fn, recompute and policy.
PyObject* region(PyObject* /*module*/, PyObject* arguments, PyObject* keywords) {
  HANDLE_TH_ERRORS
  static const char* const names[] = {"fn", "name", "recompute", "keep", nullptr};
  PyObject* function = nullptr;
  PyObject* name = nullptr;
  PyObject* recompute = nullptr;
  const char* keep = "innermost_region";
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO|$Os:region", const_cast<char**>(names),
                                   &function, &name, &recompute, &keep))
    return nullptr;
  TORCH_CHECK_TYPE(recompute,
                   "[region] recompute: expected True or False, got nothing. Write "
                   "region(fn, name, recompute=False).");
  TORCH_CHECK(PyBool_Check(recompute), "[region] recompute: expected True or False, got ",
              type_of(recompute), ".");
  const Policy policy = recompute == Py_True ? Policy::kRecompute : Policy::kSave;
  return make_named("region", function, name, policy, as_keep("region", keep));
  END_HANDLE_TH_ERRORS
}

PyObject* native_op(PyObject* /*module*/, PyObject* arguments, PyObject* keywords) {
  HANDLE_TH_ERRORS
  static const char* const names[] = {"fn", "name", "policy", "keep", nullptr};
  PyObject* function = nullptr;
  PyObject* name = nullptr;
  PyObject* policy = nullptr;
  const char* keep = "innermost_region";
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OOO|s:native_op",
                                   const_cast<char**>(names), &function, &name, &policy, &keep))
    return nullptr;
  for (size_t i = 0; i < policies.size(); ++i) {
    if (policies[i] == policy)
      return make_named("native_op", function, name, kPolicies[i], as_keep("native_op", keep));
  }
  TORCH_CHECK(false, "[native_op] policy: expected a CheckpointPolicy, got ", type_of(policy),
              ". Pass CheckpointPolicy.SAVE, RECOMPUTE or OFFLOAD.");
  END_HANDLE_TH_ERRORS
}

PyObject* needs_tensor(PyObject* /*module*/, PyObject* const* values, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  std::vector<at::Tensor> tensors;
  for (Py_ssize_t i = 0; i < count; ++i) {
    TORCH_CHECK(THPVariable_Check(values[i]), "[recompute_needs_tensor] argument ", i,
                ": expected a Tensor, got ", type_of(values[i]), ".");
    tensors.push_back(THPVariable_Unpack(values[i]));
  }
  recompute_needs_tensor(tensors);
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

/// The three members of CheckpointPolicy, once, from Python.
PyObject* set_policies(PyObject* /*module*/, PyObject* const* values, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count && i < 3; ++i) policies[i] = Py_NewRef(values[i]);
  Py_RETURN_NONE;
}

/// `with name_scope(prefix)`.
class NameScopeObject {
 public:
  explicit NameScopeObject(const py::object& prefix) {
    TORCH_CHECK(PyUnicode_Check(prefix.ptr()), "[name_scope] prefix: must be a string, got ",
                type_of(prefix.ptr()), ".");
    prefix_ = prefix.cast<std::string>();
    TORCH_CHECK_VALUE(!prefix_.empty(),
                      "[name_scope] prefix: must be non-empty, got an empty one.");
  }
  void enter() {
    TORCH_CHECK(!scope_, "[name_scope] '", prefix_,
                "': expected it outside of itself. Make "
                "another one.");
    scope_ = std::make_unique<NameScope>(prefix_);
  }
  void exit() { scope_.reset(); }

 private:
  std::string prefix_;
  std::unique_ptr<NameScope> scope_;
};

template <class T>
PyCFunction c_function(T* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef functions[] = {
    {"region", c_function(region), METH_VARARGS | METH_KEYWORDS, kRegionDoc},
    {"native_op", c_function(native_op), METH_VARARGS | METH_KEYWORDS, kNativeOpDoc},
    {"recompute_needs_tensor", c_function(needs_tensor), METH_FASTCALL, kNeedsTensorDoc},
    {"_set_policies", c_function(set_policies), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void add_named_calls(PyObject* module) {
  named_type = make_wrapper_type("remat_meta._C.NamedFunction", "A named part of a region.");
  if (PyModule_AddObjectRef(module, "NamedFunction", reinterpret_cast<PyObject*>(named_type)) < 0 ||
      PyModule_AddFunctions(module, functions) < 0)
    throw python_error();
  py::class_<NameScopeObject>(py::reinterpret_borrow<py::module_>(module), "name_scope",
                              kNameScopeDoc)
      .def(py::init<py::object>())
      .def("__enter__", &NameScopeObject::enter)
      .def("__exit__", [](NameScopeObject& self, const py::args&) { self.exit(); });
}

}  // namespace remat::python
