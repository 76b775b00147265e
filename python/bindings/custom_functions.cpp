// SPDX-License-Identifier: BSD-3-Clause

// Runs the forward() of a custom function as a named call.
#include "named_calls.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <remat/backend/named_call_scope.h>

#include "bindings.h"
#include "docstrings.h"
#include "errors.h"
#include "forward_results.h"
#include "function_wrapper.h"
#include "owned_object.h"

namespace remat::python {
namespace {

thread_local OpContext* current_op = nullptr;
PyTypeObject* forward_builder_type = nullptr;
PyTypeObject* forward_type = nullptr;

class NamesState final : public WrapperState {
 public:
  explicit NamesState(std::vector<std::string> saved) : names(std::move(saved)) {}

  PyObject* reduce(PyObject* function) const override {
    const py::object make = py::module_::import("remat_meta._C").attr("auto_forward");
    const py::tuple given = py::cast(names);
    if (!function) return py::make_tuple(make, given).release().ptr();
    return py::make_tuple(make(*given), py::make_tuple(py::handle(function))).release().ptr();
  }

  PyObject* show() const override {
    return PyUnicode_FromFormat("auto_forward(%s)", list().c_str());
  }

  std::string list() const {
    std::string text;
    for (const std::string& name : names)
      text.append(text.empty() ? "'" : ", '").append(name).append("'");
    return text;
  }

  const std::vector<std::string> names;
};

void check_count(const NamesState& state, size_t saved, const NamedCall* named) {
  TORCH_CHECK(saved == state.names.size(), "[auto_forward] ",
              named ? named->str() : "call without a name",
              ": auto_forward save_for_backward names must match: expected ", state.names.size(),
              " saved tensors (", state.list(), "), got ", saved,
              ". Name all that ctx.save_for_backward() is given, in that order.");
}

PyObject* run_unnamed(const NamesState& state, PyObject* forward, const CallArguments& arguments) {
  THPObjectPtr output(arguments.pass_to(forward));
  if (output && arguments.positional > 0)
    check_count(state, saved_by(arguments.values[0]).size(), nullptr);
  return output.release();
}

std::vector<at::Tensor> tensors_in(const CallArguments& arguments) {
  std::vector<at::Tensor> tensors;
  for (const auto i : c10::irange(arguments.count())) {
    if (i > 0) take_output(arguments.values[i], OutputRule::kAnyLeaf, {}, tensors);
  }
  return tensors;
}

PyObject* run_forward(const NamesState& state, PyObject* forward, const CallArguments& arguments) {
  const NamedCall* const named =
      detail::is_in_region() && arguments.positional > 0 ? OpContext::take() : nullptr;
  if (!named) return run_unnamed(state, forward, arguments);
  PyObject* const ctx = arguments.values[0];
  const std::vector<at::Tensor> tensors = tensors_in(arguments);
  std::optional<detail::NamedCallScope> scope(std::in_place, *named, tensors);
  if (scope->is_skipped()) return load_marked(scope->results(), ctx);
  THPObjectPtr output;
  {
    const OpContext hidden(nullptr);
    const HandleBound bound;
    output = arguments.pass_to(forward);
  }
  if (!output) {
    const ErrorAside error;
    scope.reset();
    return nullptr;
  }
  const std::vector<at::Tensor> saved = saved_by(ctx);
  check_count(state, saved.size(), named);
  CallResults results = take_apart(output, *named, "op");
  check_no_new_leaf(results, tensors, *named, "op");
  add_marks(results, ctx);
  scope->expect_saved(state.names, saved, saving_of(ctx));
  scope->finish(results);
  return output.release();
}

PyObject* call_forward_builder(PyObject* object, PyObject* const* values, size_t flags,
                               PyObject* keywords) {
  HANDLE_TH_ERRORS
  const CallArguments arguments = arguments_of(values, flags, keywords);
  TORCH_CHECK(arguments.count() == 1 && arguments.positional == 1 && PyCallable_Check(values[0]),
              "[auto_forward] forward: expected one function, the forward() to decorate, got ",
              arguments.count(), " arguments. Write @auto_forward(\"x\", \"y\") over forward().");
  return make_wrapper(forward_type, call_wrapped<NamesState, run_forward>, state_of(object),
                      values[0]);
  END_HANDLE_TH_ERRORS
}

PyObject* auto_forward(PyObject* /*module*/, PyObject* const* values, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  std::vector<std::string> names;
  for (const auto i : c10::irange(count)) {
    TORCH_CHECK(PyUnicode_Check(values[i]), "[auto_forward] name ", i, ": expected a string, got ",
                type_of(values[i]), ". Write @auto_forward(\"x\", \"y\") over forward().");
    const char* const name = PyUnicode_AsUTF8(values[i]);
    if (!name) throw python_error();
    TORCH_CHECK_VALUE(*name, "[auto_forward] name ", i,
                      ": must be non-empty, got an empty one. Name the saved tensor.");
    TORCH_CHECK(std::find(names.begin(), names.end(), name) == names.end(), "[auto_forward] name ",
                i,
                ": expected names that are used once, got: Duplicate auto_forward "
                "save_for_backward name: ",
                name, ". Give each saved tensor its own.");
    names.emplace_back(name);
  }
  return make_wrapper(forward_builder_type, call_forward_builder,
                      std::make_shared<const NamesState>(std::move(names)), nullptr);
  END_HANDLE_TH_ERRORS
}

PyMethodDef custom_functions[] = {
    {"auto_forward", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(auto_forward)),
     METH_FASTCALL, kAutoForwardDoc},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

OpContext::OpContext(const NamedCall* call)
    : call_(call), outer_(std::exchange(current_op, this)) {}

OpContext::~OpContext() {
  current_op = outer_;
}

const NamedCall* OpContext::take() {
  if (!current_op) return nullptr;
  current_op->used_ = true;
  return current_op->call_;
}

PyObject* run_op(const NamedCall& named, PyObject* function, const CallArguments& arguments) {
  if (!detail::is_in_region()) {
    const OpContext hidden(nullptr);
    return arguments.pass_to(function);
  }
  const OpContext context(&named);
  const HandleBound bound;
  THPObjectPtr output(arguments.pass_to(function));
  if (!output) return nullptr;
  TORCH_CHECK_VALUE(context.used(), "[op] ", named.str(),
                    ": expected a custom function whose forward() has auto_forward() or calls "
                    "get_handle(ctx), got one that does neither, so that no policy could be "
                    "carried out. Add one of them, or use native_op().");
  return output.release();
}

void add_custom_functions(PyObject* module) {
  forward_builder_type =
      add_wrapper_type(module, "remat_meta._C.AutoForwardBuilder",
                       "The result of auto_forward(names): call it with forward().");
  forward_type =
      add_wrapper_type(module, "remat_meta._C.AutoForward", "A forward() that is a named call.");
  checked(PyModule_AddFunctions(module, custom_functions));
}

}  // namespace remat::python
