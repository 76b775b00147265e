// SPDX-License-Identifier: BSD-3-Clause

// The Python functions for named calls.
#include "named_calls.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <remat/backend/name_scope.h>
#include <remat/backend/named_call_scope.h>
#include <remat/backend/native_op.h>

#include "bindings.h"
#include "docstrings.h"
#include "errors.h"
#include "function_wrapper.h"
#include "owned_object.h"
#include "policy_table.h"
#include "tensor_hooks.h"

namespace remat::python {
namespace {

/// Holds a call's result without its tensors. Any thread may drop the holder, without the GIL.
std::shared_ptr<const ArgumentTree> make_holder(std::unique_ptr<const ArgumentTree> tree) {
  return {tree.release(), [](const ArgumentTree* held) {
            if (!interpreter_lives()) return;
            const pybind11::gil_scoped_acquire gil;
            delete held;
          }};
}

}  // namespace

Keep keep_of(const char* where, std::string_view text) {
  TORCH_CHECK_VALUE(text == "innermost_region" || text == "all_regions", "[", where,
                    "] keep: expected \"innermost_region\" or \"all_regions\", got \"", text,
                    "\".");
  return text == "all_regions" ? Keep::kAllRegions : Keep::kInnermostRegion;
}

CallResults take_apart(PyObject* output, const NamedCall& call, const char* where) {
  CallResults results;
  if (THPVariable_CheckExact(output)) {
    results.tensors.push_back(THPVariable_Unpack(output));
    return results;
  }
  std::vector<at::Tensor> tensors;
  auto tree = std::make_unique<const ArgumentTree>(CallArguments{&output, 1, /*keywords=*/nullptr},
                                                   tensors);
  const std::string other = tree->type_of_other_leaf();
  TORCH_CHECK(other.empty(), "[", where, "] ", call.str(),
              ": fn must return a Tensor, None, or a nesting of tuples, lists and dicts of them; "
              "got ",
              other, ". Return other values another way.");
  results.tensors.append(tensors.begin(), tensors.end());
  results.holder = make_holder(std::move(tree));
  return results;
}

PyObject* put_together(const CallResults& results) {
  if (!results.holder) return THPVariable_Wrap(results.tensors[0]);
  return static_cast<const ArgumentTree*>(results.holder.get())->build_one(results.tensors);
}

// Rejects a new leaf for all policies, as torch_remat does, because a RECOMPUTE call would create
// another leaf in the replay, whose gradient the program would not see.
void check_no_new_leaf(const CallResults& results, c10::ArrayRef<at::Tensor> arguments,
                       const NamedCall& call, const char* where) {
  for (const auto i : c10::irange(results.tensors.size())) {
    const at::Tensor& tensor = results.tensors[i];
    if (!tensor.defined() || !tensor.requires_grad() || !tensor.is_leaf() || tensor.is_view())
      continue;
    const bool is_argument =
        std::any_of(arguments.begin(), arguments.end(),
                    [&](const at::Tensor& argument) { return argument.is_same(tensor); });
    TORCH_CHECK(is_argument, "[", where, "] ", call.str(), ", result ", i,
                ": expected a tensor that fn computes; it returned a leaf tensor that requires "
                "grad. Make it outside of the call, or return a computation on it.");
  }
}

PyObject* run_named_call(const NamedCall& call, PyObject* function,
                         const CallArguments& arguments) {
  if (!detail::is_in_region()) return arguments.pass_to(function);
  std::vector<at::Tensor> tensors;
  for (const auto i : c10::irange(arguments.count()))
    take_output(arguments.values[i], OutputRule::kAnyLeaf, call.name, tensors);
  std::optional<detail::NamedCallScope> scope;
  with_warnings_now([&] { scope.emplace(call, tensors); });
  if (scope->is_skipped()) return put_together(scope->results());
  const int64_t first_handle = call.is_saved() ? HookHandleIds::next() : 0;
  THPObjectPtr output;
  {
    const HandleBound bound;
    output = arguments.pass_to(function);
  }
  if (!output) {
    const ErrorAside error;
    scope.reset();
    return nullptr;
  }
  if (call.is_saved() && HookHandleIds::next() != first_handle)
    HookHandleIds::note_in_forward_only();
  const CallResults results = take_apart(output, call, "native_op");
  check_no_new_leaf(results, tensors, call, "native_op");
  scope->finish(results);
  return output.release();
}

namespace {

PyTypeObject* named_type = nullptr;

const char* keep_name(Keep keep) {
  return keep == Keep::kAllRegions ? "all_regions" : "innermost_region";
}

class NamedState final : public WrapperState {
 public:
  NamedState(NamedCall named, const char* made_by) : call(std::move(named)), maker(made_by) {}

  PyObject* reduce(PyObject* function) const override {
    const py::object make = py::module_::import("remat_meta._C").attr(maker);
    return Py_BuildValue("O(OsOs)", make.ptr(), function, call.name.c_str(), object_of(call.policy),
                         keep_name(call.keep));
  }

  PyObject* show() const override { return PyUnicode_FromString(call.str().c_str()); }

  const NamedCall call;
  const char* const maker;  // name of the module's function that makes such objects
};

using RunCall = PyObject*(const NamedCall&, PyObject*, const CallArguments&);

template <RunCall run>
PyObject* run_named(const NamedState& state, PyObject* function, const CallArguments& arguments) {
  return run(state.call, function, arguments);
}

PyObject* make_named(const char* where, PyObject* function, PyObject* name, Policy policy,
                     Keep keep, const char* maker = "native_op",
                     vectorcallfunc run = call_wrapped<NamedState, run_named<run_named_call>>) {
  TORCH_CHECK(PyCallable_Check(function), "[", where, "] fn: ", where,
              " expects a function as its first argument, got ", type_of(function), ".");
  TORCH_CHECK(PyUnicode_Check(name), "[", where, "] name: expected a string, got ", type_of(name),
              ".");
  const char* const text = PyUnicode_AsUTF8(name);
  if (!text) throw python_error();
  NamedCall call{.name = text, .policy = policy, .keep = keep, .saved_names = {}};
  detail::check_call_name(call, where);
  return make_wrapper(named_type, run, std::make_shared<const NamedState>(std::move(call), maker),
                      function);
}

// Raises RuntimeError for wrong arguments, because programs for torch_remat expect that.
PyObject* region(PyObject* /*module*/, PyObject* arguments, PyObject* keywords) {
  HANDLE_TH_ERRORS
  static const char* const names[] = {"fn", "name", "recompute", "keep", nullptr};
  PyObject* function = nullptr;
  PyObject* name = nullptr;
  PyObject* recompute = nullptr;
  const char* keep = "innermost_region";
  TORCH_CHECK_TYPE(PyTuple_GET_SIZE(arguments) <= 2,
                   "[region] recompute: expected recompute and keep by their names, got ",
                   PyTuple_GET_SIZE(arguments),
                   " arguments without. Write region(fn, name, recompute=False).");
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OO|$Os:region", const_cast<char**>(names),
                                   &function, &name, &recompute, &keep))
    return nullptr;
  TORCH_CHECK_TYPE(recompute,
                   "[region] recompute: expected True or False, got nothing. Write "
                   "region(fn, name, recompute=False).");
  TORCH_CHECK(PyBool_Check(recompute), "[region] recompute: expected True or False, got ",
              type_of(recompute), ".");
  const Policy policy = recompute == Py_True ? Policy::kRecompute : Policy::kSave;
  return make_named("region", function, name, policy, keep_of("region", keep));
  END_HANDLE_TH_ERRORS
}

/// Parses fn, name, policy and keep for native_op() and op().
PyObject* make_with_policy(const char* where, const char* format, PyObject* arguments,
                           PyObject* keywords, vectorcallfunc run) {
  static const char* const names[] = {"fn", "name", "policy", "keep", nullptr};
  PyObject* function = nullptr;
  PyObject* name = nullptr;
  PyObject* policy = nullptr;
  const char* keep = "innermost_region";
  const Py_ssize_t given = PyTuple_GET_SIZE(arguments);
  TORCH_CHECK_TYPE(given <= 3 || (given == 4 && PyUnicode_Check(PyTuple_GET_ITEM(arguments, 3))),
                   "[", where, "] keep: expected a string after fn, name and policy, got ",
                   type_of(PyTuple_GET_ITEM(arguments, 3)), ". Write ", where,
                   "(fn, name, policy)(args...): the arguments go into the second call.");
  if (!PyArg_ParseTupleAndKeywords(arguments, keywords, format, const_cast<char**>(names),
                                   &function, &name, &policy, &keep))
    return nullptr;
  TORCH_CHECK_TYPE(policy, "[", where,
                   "] policy: expected a CheckpointPolicy as the third argument, got nothing. "
                   "Write ",
                   where, "(fn, name, CheckpointPolicy.SAVE), RECOMPUTE or OFFLOAD.");
  return make_named(where, function, name, policy_of(where, policy), keep_of(where, keep), where,
                    run);
}

PyObject* native_op(PyObject* /*module*/, PyObject* arguments, PyObject* keywords) {
  HANDLE_TH_ERRORS
  return make_with_policy("native_op", "OO|Os:native_op", arguments, keywords,
                          call_wrapped<NamedState, run_named<run_named_call>>);
  END_HANDLE_TH_ERRORS
}

PyObject* op(PyObject* /*module*/, PyObject* arguments, PyObject* keywords) {
  HANDLE_TH_ERRORS
  return make_with_policy("op", "OO|Os:op", arguments, keywords,
                          call_wrapped<NamedState, run_named<run_op>>);
  END_HANDLE_TH_ERRORS
}

/// Name, policy and keep of a NamedFunction: see Note [In compiled code].
PyObject* named_call_of(PyObject* /*module*/, PyObject* named) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyObject_TypeCheck(named, named_type),
                   "[compile] expected a NamedFunction, got ", type_of(named), ".");
  const NamedCall& call = static_cast<const NamedState&>(*state_of(named)).call;
  return Py_BuildValue("sOs", call.name.c_str(), object_of(call.policy), keep_name(call.keep));
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

PyObject* set_policies(PyObject* /*module*/, PyObject* const* values, Py_ssize_t count) {
  if (count == 3) set_policy_objects(values);
  Py_RETURN_NONE;
}

PyObject* name_of_type(PyObject* /*module*/, PyObject* value) {
  HANDLE_TH_ERRORS
  return checked(PyUnicode_FromString(type_of(value).c_str()));
  END_HANDLE_TH_ERRORS
}

/// The context manager `with name_scope(prefix)`.
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

PyMethodDef named_call_functions[] = {
    {"region", c_function(region), METH_VARARGS | METH_KEYWORDS, kRegionDoc},
    {"native_op", c_function(native_op), METH_VARARGS | METH_KEYWORDS, kNativeOpDoc},
    {"op", c_function(op), METH_VARARGS | METH_KEYWORDS, kOpDoc},
    {"_named_call_of", named_call_of, METH_O, nullptr},
    {"recompute_needs_tensor", c_function(needs_tensor), METH_FASTCALL, kNeedsTensorDoc},
    {"_set_policies", c_function(set_policies), METH_FASTCALL, nullptr},
    {"_type_of", name_of_type, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void add_named_calls(PyObject* module) {
  named_type = add_wrapper_type(module, "remat_meta._C.NamedFunction", "A named part of a region.");
  checked(PyModule_AddFunctions(module, named_call_functions));
  py::class_<NameScopeObject>(py::reinterpret_borrow<py::module_>(module), "name_scope",
                              kNameScopeDoc)
      .def(py::init<py::object>())
      .def("__enter__", &NameScopeObject::enter)
      .def("__exit__", [](NameScopeObject& self, const py::args&) { self.exit(); });
}

}  // namespace remat::python
