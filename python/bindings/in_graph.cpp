// SPDX-License-Identifier: BSD-3-Clause

// Python functions that torch.compile traces in place of C calls, and the policy queries they make.
//
// Note [In compiled code]: when Dynamo traces a call of an object, it looks up __call__ in the dict
// of the object's type. If it finds a Python function there, it traces that function, whereas
// Python calls the type's slot. So the dicts of our types have Python functions for the compiler,
// and calls outside of compiled code stay in C. Such a function reads the object's properties from
// the attribute "_graph_key", a string that _compile.py makes on first access. Dynamo guards
// strings by their value, so code that was compiled for one policy does not serve another.
#include "bindings.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <remat/backend/environment_policy.h>
#include <remat/backend/named_call_scope.h>
#include <remat/engine/hidden_scopes.h>
#include <remat/engine/interception_bits.h>
#include <remat/engine/op_call.h>
#include <remat/engine/region_policy.h>

#include "function_wrapper.h"
#include "policy_table.h"
#include "settings.h"

namespace remat::python {
namespace {

namespace py = pybind11;

thread_local bool compiles_in_region = false;  // set by call_compiler()

/// The state that guards of compiled code check. in_region() is true if the code runs in a region
/// or, while the code is compiled, if it will run in one.
struct Surroundings {
  bool in_region() const { return compiles_in_region || detail::is_in_region(); }
};

void set_traced(const py::type& type, const char* name, const py::function& function) {
  auto* const object = reinterpret_cast<PyTypeObject*>(type.ptr());
  if (PyDict_SetItemString(object->tp_dict, name, function.ptr()) < 0)
    throw py::error_already_set();
  PyType_Modified(object);
}

const Settings& settings_of(const py::object& checkpoint) {
  const auto* const settings = dynamic_cast<const Settings*>(state_of(checkpoint.ptr()).get());
  TORCH_CHECK_TYPE(settings, "[compile] expected what checkpoint(options) returns");
  return *settings;
}

py::object policy_object(const std::optional<Policy>& policy) {
  return policy ? py::reinterpret_borrow<py::object>(object_of(*policy)) : py::none();
}

/// Returns the policy of `checkpoint`, a result of checkpoint(options), or else that of the
/// environment, which counts only with intercept=True; null if there is neither.
std::shared_ptr<const RegionPolicy> region_policy_of(const py::object& checkpoint) {
  const CheckpointOptions& options = settings_of(checkpoint).options;
  return options.policy || !options.intercept ? options.policy : policy_of_environment();
}

/// Returns the rules of the user's policy as JSON; empty if the options have no policy.
std::string rules_of(const py::object& checkpoint) {
  const std::shared_ptr<const RegionPolicy>& policy = settings_of(checkpoint).options.policy;
  return policy ? policy->table().to_json() : "";
}

bool has_policy(const py::object& checkpoint) {
  return region_policy_of(checkpoint) != nullptr;
}

std::optional<OpInfo> info_of(const std::string& name, const std::string& overload) {
  const auto op = c10::Dispatcher::singleton().findSchema({name, overload});
  return op ? std::optional<OpInfo>(std::in_place, *op) : std::nullopt;
}

bool is_communication(const std::string& name, const std::string& overload) {
  const std::optional<OpInfo> info = info_of(name, overload);
  return info && info->is_communication();
}

/// Returns the policy that rules give to an op whose named call would be `call`, or else None.
py::object policy_of_op(const py::object& checkpoint, const std::string& name,
                        const std::string& overload, const std::string& call) {
  const std::shared_ptr<const RegionPolicy> policy = region_policy_of(checkpoint);
  const std::optional<OpInfo> info = info_of(name, overload);
  if (!policy || !info) return py::none();
  if (const auto by_name = policy->of_call(call)) return policy_object(by_name);
  return policy_object(policy->of_op(*info, /*is_composite=*/false));
}

py::object policy_of_call(const py::object& checkpoint, const std::string& name) {
  const std::shared_ptr<const RegionPolicy> policy = region_policy_of(checkpoint);
  return policy ? policy_object(policy->of_call(name)) : py::none();
}

bool is_out_variant(const c10::OperatorHandle& op) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const auto& a) { return a.is_out(); });
}

/// True for a composite op: a graph contains the ops that it calls instead of the op itself. Checks
/// all overloads if `overload` is nullopt.
bool is_taken_apart(const std::string& name, const std::optional<std::string>& overload) {
  bool is_known = false;
  for (const c10::OperatorName& op : c10::Dispatcher::singleton().getAllOpNames()) {
    if (op.name != name || (overload && op.overload_name != *overload)) continue;
    const auto handle = c10::Dispatcher::singleton().findSchema(op);
    if (!handle || is_out_variant(*handle)) continue;
    if (!handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return false;
    is_known = true;
  }
  return is_known;
}

/// Takes a name with overload, "aten::add.Tensor".
bool is_taken_apart(std::string_view op) {
  const size_t dot = op.find('.');
  if (dot == std::string_view::npos) return is_taken_apart(std::string(op), "");
  return is_taken_apart(std::string(op.substr(0, dot)), std::string(op.substr(dot + 1)));
}

bool is_taken_apart(const PolicyTable& table, size_t number) {
  const PolicyRule& rule = table.rules()[number];
  if (rule.is_of_preset()) return false;
  if (rule.kind == PolicyRule::Kind::kCall)
    return is_taken_apart(PolicyTable::op_of_call(rule.pattern));
  const std::vector<PolicyTable::NamedOp> ops = table.ops_named_by(number);
  const auto is_apart = [](const auto& op) { return is_taken_apart(op.name, op.overload); };
  return !ops.empty() && std::all_of(ops.begin(), ops.end(), is_apart);
}

/// Returns the user's rules that match only composite ops, and therefore no op of a graph.
std::vector<std::string> rules_of_composites(const py::object& checkpoint) {
  std::vector<std::string> found;
  const std::shared_ptr<const RegionPolicy> policy = region_policy_of(checkpoint);
  if (!policy) return found;
  const PolicyTable& table = policy->table();
  for (size_t i = 0; i < table.rules().size(); ++i) {
    if (is_taken_apart(table, i)) found.push_back(table.rules()[i].str());
  }
  return found;
}

/// Calls a compiler and hides its ops from regions. The thread's dispatch keys stay as they are,
/// since the compiler writes guards on them.
py::object call_compiler(const py::object& compile, const py::args& args,
                         const py::kwargs& keywords) {
  const bool outer = std::exchange(compiles_in_region, Surroundings().in_region());
  const bool ops_were_seen = interception_is_on();
  const SuspendScopes unseen;
  if (ops_were_seen) switch_interception(true);
  const auto restore = c10::make_scope_exit([outer] { compiles_in_region = outer; });
  return compile(*args, **keywords);
}

/// Calls `function`, which reads the thread's dispatch keys, with interception's keys switched off.
py::object call_without_bits(const py::object& function, const py::args& args) {
  const InterceptionOff off;
  return function(*args);
}

}  // namespace

void add_in_graph(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  m.def("_set_traced", &set_traced);
  m.def("_set_graph_key_maker", [](const py::function& make) { set_graph_key_maker(make.ptr()); });
  m.def("_call_without_bits", &call_without_bits);
  m.def("_call_compiler", &call_compiler);
  m.def("_keywords_of",
        [](const py::object& checkpoint) { return settings_of(checkpoint).given(); });
  m.def("_rules_of", torch::wrap_pybind_function(rules_of));
  m.def("_has_policy", torch::wrap_pybind_function(has_policy));
  m.def("_is_communication", torch::wrap_pybind_function(is_communication));
  m.def("_rules_of_composites", torch::wrap_pybind_function(rules_of_composites));
  m.def("_policy_of_op", torch::wrap_pybind_function(policy_of_op));
  m.def("_policy_of_call", torch::wrap_pybind_function(policy_of_call));
  py::class_<Surroundings>(m, "_Surroundings")
      .def(py::init<>())
      .def_property_readonly("in_region", &Surroundings::in_region);
}

}  // namespace remat::python
