// SPDX-License-Identifier: BSD-3-Clause

// Parses the options of checkpoint().
#include "settings.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <variant>

#include "callbacks.h"
#include "errors.h"
#include "policy_table.h"

namespace remat::python {
namespace {

std::string show(PyObject* value) {
  THPObjectPtr text(PyObject_Repr(value));
  const char* const bytes = text ? PyUnicode_AsUTF8(text) : nullptr;
  PyErr_Clear();
  return bytes ? bytes : "something without a repr";
}

bool as_bool(const char* name, PyObject* value) {
  TORCH_CHECK_TYPE(PyBool_Check(value), "[checkpoint] ", name, ": expected True or False, got ",
                   show(value), ".");
  return value == Py_True;
}

std::string as_string(const char* name, PyObject* value) {
  TORCH_CHECK_TYPE(PyUnicode_Check(value), "[checkpoint] ", name, ": expected a string, got ",
                   type_of(value), ".");
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(value, &size);
  if (!bytes) throw python_error();
  return {bytes, static_cast<size_t>(size)};
}

template <class Value, size_t kCount>
Value as_choice(const char* option, PyObject* value,
                const std::array<std::pair<const char*, Value>, kCount>& choices) {
  const std::string given = as_string(option, value);
  std::string known;
  for (const auto& [name, choice] : choices) {
    if (given == name) return choice;
    known.append(known.empty() ? "\"" : name == choices.back().first ? "\" or \"" : "\", \"");
    known.append(name);
  }
  TORCH_CHECK_VALUE(false, "[checkpoint] ", option, ": expected ", known, "\", got \"", given,
                    "\".");
}

void set_region_name(Settings& settings, PyObject* value) {
  if (value != Py_None) settings.options.name = as_string("region_name", value);
}

void set_determinism_check(Settings& settings, PyObject* value) {
  settings.options.determinism =
      as_choice("determinism_check", value,
                std::array{std::pair("none", Determinism::kNone),
                           std::pair("metadata", Determinism::kMetadata),
                           std::pair("default", Determinism::kMetadata)});
}

/// Makes hooks from `value`, which is (pack, unpack), (pack, unpack, capture_context) or an object
/// of saved_tensors_hooks. The hooks own these functions, which are also appended to `held`.
SavedTensorsHooks make_hooks(PyObject* value, std::vector<SharedObject>& held) {
  THPObjectPtr parts(parts_of_hooks(value));
  if (!parts) parts = as_tuple("saved_tensors_hooks", value);
  const Py_ssize_t size = PyTuple_GET_SIZE(parts.get());
  TORCH_CHECK_VALUE(size == 2 || size == 3,
                    "[checkpoint] saved_tensors_hooks: expected (pack, unpack) or (pack, unpack, "
                    "capture_context), got ",
                    size, " values.");
  constexpr std::array kNames{"pack", "unpack", "capture_context"};
  std::array<SharedObject, 3> functions;
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* const function = PyTuple_GET_ITEM(parts.get(), i);
    if (i == 2 && function == Py_None) break;
    TORCH_CHECK_TYPE(PyCallable_Check(function), "[checkpoint] saved_tensors_hooks, ", kNames[i],
                     ": expected a function, got ", type_of(function), ".");
    functions[i] = share(function);
    held.push_back(functions[i]);
  }
  return make_saved_tensors_hooks(functions[0], functions[1], functions[2]);
}

void set_saved_tensors_hooks(Settings& settings, PyObject* value) {
  if (value != Py_None) settings.options.saved_tensors_hooks = make_hooks(value, settings.objects);
}

void set_recompute_state_hooks(Settings& settings, PyObject* value) {
  for_each_item("recompute_state_hooks", value, [&](const std::string& name, PyObject* hook) {
    TORCH_CHECK_TYPE(
        PyObject_HasAttrString(hook, "snapshot") && PyObject_HasAttrString(hook, "restore") &&
            !PyType_Check(hook),
        "[checkpoint] ", name, ": expected an object with snapshot() and restore(state), got ",
        PyType_Check(hook) ? "a class, of which an instance must be made" : type_of(hook), ".");
    settings.objects.push_back(share(hook));
    settings.options.state_hooks.push_back(make_state_hook(settings.objects.back()));
  });
}

void set_generators(Settings& settings, PyObject* value) {
  for_each_item("generators", value, [&](const std::string& name, PyObject* generator) {
    TORCH_CHECK_TYPE(THPGenerator_Check(generator), "[checkpoint] ", name,
                     ": expected a torch.Generator, got ", type_of(generator), ".");
    settings.options.generators.push_back(THPGenerator_Unwrap(generator));
  });
}

void set_implicit_keep(Settings& settings, PyObject* value) {
  settings.options.implicit_keep =
      as_choice("implicit_keep", value,
                std::array{std::pair("keep", ImplicitKeep::kKeep),
                           std::pair("warn_once", ImplicitKeep::kWarnOnce),
                           std::pair("error", ImplicitKeep::kError)});
}

void set_replay(Settings& settings, PyObject* value) {
  settings.options.replay = as_choice(
      "replay", value,
      std::array{std::pair("function", ReplayEngine::kFunction),
                 std::pair("tape", ReplayEngine::kTape), std::pair("auto", ReplayEngine::kAuto)});
}

void set_policy(Settings& settings, PyObject* value) {
  if (value == Py_None) return;
  SharedObject function;
  settings.options.policy = make_region_policy(value, function);
  if (function) settings.objects.push_back(std::move(function));
}

void set_offload_store(Settings& settings, PyObject* value) {
  if (value == Py_None) return;
  if (PyObject_HasAttrString(value, "put")) {
    settings.objects.push_back(share(value));
    settings.options.offload_store = make_offload_store(settings.objects.back());
    return;
  }
  TORCH_CHECK_TYPE(py::isinstance<OffloadStore>(value),
                   "[checkpoint] offload_store: expected an OffloadStore such as "
                   "host_memory_store(), or an object with put(tensor), got ",
                   type_of(value), ".");
  settings.options.offload_store = py::handle(value).cast<std::shared_ptr<OffloadStore>>();
}

// Internal option, set by torch_checkpoint(), whose functions may return leaves of any type.
void set_any_output(Settings& settings, PyObject* value) {
  settings.output_rule =
      as_bool("_any_output", value) ? OutputRule::kAnyLeaf : OutputRule::kTensorsOnly;
}

// Internal option: a function without arguments that returns the lines of Python that call an op.
void set_op_site(Settings& settings, PyObject* value) {
  TORCH_CHECK_TYPE(PyCallable_Check(value), "[checkpoint] _op_site: expected a function, got ",
                   type_of(value), ".");
  settings.objects.push_back(share(value));
  settings.options.op_site = [site = settings.objects.back()]() -> std::string {
    if (!interpreter_lives()) return "";
    const py::gil_scoped_acquire gil;
    return py::handle(site->get())().cast<std::string>();
  };
}

/// An option's name, and the flag that the option sets or the function that parses its value.
using Option = std::pair<std::string_view,
                         std::variant<bool CheckpointOptions::*, void (*)(Settings&, PyObject*)>>;

constexpr std::array kOptions{
    Option{"region_name", set_region_name},
    Option{"preserve_rng_state", &CheckpointOptions::preserve_rng},
    Option{"determinism_check", set_determinism_check},
    Option{"saved_tensors_hooks", set_saved_tensors_hooks},
    Option{"recompute_state_hooks", set_recompute_state_hooks},
    Option{"early_stop", &CheckpointOptions::early_stop},
    Option{"intercept", &CheckpointOptions::intercept},
    Option{"implicit_keep", set_implicit_keep},
    Option{"policy", set_policy},
    Option{"replay", set_replay},
    Option{"cuts", set_cuts},
    Option{"plan", set_plan},
    Option{"offload_store", set_offload_store},
    Option{"offload_inputs", &CheckpointOptions::offload_inputs},
    Option{"generators", set_generators},
    Option{"_any_output", set_any_output},
    Option{"_cuts", set_planned_cuts},
    Option{"_op_site", set_op_site},
};

void apply(const Option& option, Settings& settings, PyObject* value) {
  const auto& [name, action] = option;
  if (const auto* const flag = std::get_if<bool CheckpointOptions::*>(&action)) {
    settings.options.*(*flag) = as_bool(name.data(), value);
  } else {
    std::get<void (*)(Settings&, PyObject*)>(action)(settings, value);
  }
}

/// Returns an option whose spelling is close to `name`, or that ends in _`name`; empty if none.
std::string nearest_option(std::string_view name) {
  py::list known;
  for (const Option& option : kOptions) {
    if (option.first[0] != '_') known.append(py::str(option.first.data(), option.first.size()));
  }
  const py::object near = py::module_::import("difflib").attr("get_close_matches");
  const py::list found = near(py::str(name.data(), name.size()), known, /*n=*/1);
  if (!found.empty()) return found[0].cast<std::string>();
  const std::string last_word = "_" + std::string(name);
  for (const Option& option : kOptions) {
    if (option.first[0] != '_' && option.first.ends_with(last_word))
      return std::string(option.first);
  }
  return "";
}

/// Returns a hint for an unknown option: a similar name, or what replaces an option of torch.
std::string hint_of(std::string_view name) {
  const std::string torchs =
      " torch_checkpoint(fn, *args) takes all options of torch's checkpoint.";
  if (name == "use_reentrant") return " It is torch's: leave it out." + torchs;
  if (name == "context_fn") return " It is torch's: give policy the ops to SAVE." + torchs;
  if (name == "debug") return " It is torch's: set REMAT_DEBUG=1 in the environment." + torchs;
  const std::string nearest = nearest_option(name);
  return nearest.empty() ? "" : " Did you mean " + nearest + "?";
}

// True if no region shares the objects in the options; only then may garbage collection visit them.
bool holds_objects_alone(const Settings& settings) {
  const auto& hooks = settings.options.state_hooks;
  if (settings.options.offload_store.use_count() > 1) return false;
  if (settings.options.policy.use_count() > 1) return false;
  for (const auto& policy : settings.options.cuts.policies) {
    if (policy.use_count() > 1) return false;
  }
  return std::all_of(settings.objects.begin(), settings.objects.end(),
                     [](const SharedObject& object) { return object.use_count() == 2; }) &&
         std::all_of(hooks.begin(), hooks.end(),
                     [](const auto& hook) { return hook.use_count() == 1; });
}

}  // namespace

THPObjectPtr as_tuple(const std::string& name, PyObject* value) {
  // reject text, since PySequence_Tuple() would split it into letters
  const bool is_text = PyUnicode_Check(value) || PyBytes_Check(value);
  THPObjectPtr items(is_text ? nullptr : PySequence_Tuple(value));
  if (items) return items;
  PyErr_Clear();
  TORCH_CHECK_TYPE(false, "[checkpoint] ", name, ": expected a list or tuple, got ", type_of(value),
                   ".");
}

py::dict Settings::given() const {
  return keywords ? py::reinterpret_borrow<py::dict>(keywords->get()) : py::dict();
}

int Settings::traverse(visitproc visit, void* arg) const {
  if (!holds_objects_alone(*this)) return 0;
  if (keywords) Py_VISIT(keywords->get());
  for (const SharedObject& object : objects) Py_VISIT(object->get());
  return 0;
}

PyObject* Settings::reduce(PyObject* function) const {
  const py::object rebuild = py::module_::import("remat_meta._C").attr("_rebuild");
  if (!function) return Py_BuildValue("O(O)", rebuild.ptr(), given().ptr());
  return Py_BuildValue("O(OO)", rebuild.ptr(), given().ptr(), function);
}

PyObject* Settings::show() const {
  return PyUnicode_FromFormat("checkpoint with %R", given().ptr());
}

void set_option(Settings& settings, std::string_view name, PyObject* value) {
  std::string known;
  for (const Option& option : kOptions) {
    if (option.first == name) return apply(option, settings, value);
    if (option.first[0] != '_') known.append(known.empty() ? "" : ", ").append(option.first);
  }
  TORCH_CHECK_TYPE(false, "[checkpoint] ", name, ": expected one of the options ", known,
                   "; got another name.", hint_of(name));
}

}  // namespace remat::python
