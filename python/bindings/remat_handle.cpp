// SPDX-License-Identifier: BSD-3-Clause

// Handles by which custom functions run their forward() as a named call.
#include "named_calls.h"

#include <c10/util/Exception.h>
#include <c10/util/irange.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/backend/named_call_scope.h>
#include <remat/backend/native_op.h>

#include "bindings.h"
#include "docstrings.h"
#include "errors.h"
#include "forward_results.h"
#include "owned_object.h"
#include "policy_table.h"

namespace remat::python {
namespace {

/// The named call of a handle, from get_handle() to record_outputs(). Must end on the thread that
/// opened it.
struct OpenCall {
  uint64_t number;
  std::unique_ptr<detail::NamedCallScope> scope{};
  std::vector<at::Tensor> arguments{};
  WeakNodePtr node{NodePtr()};
  uintptr_t hook = 0;  // id of the post hook on `node`
};

thread_local std::vector<std::shared_ptr<OpenCall>> open_calls;  // the innermost last
thread_local uint64_t calls_opened = 0;

/// Ends the call, which counts as one that threw unless NamedCallScope::finish() ran. Does nothing
/// on another thread, and while inner calls or regions run; in these cases the enclosing
/// HandleBound ends the call.
void end_call(const std::shared_ptr<OpenCall>& call) noexcept {
  const auto open = std::find(open_calls.begin(), open_calls.end(), call);
  if (open == open_calls.end() || !call->scope->is_innermost()) return;
  const std::shared_ptr<OpenCall> ended = *open;
  open_calls.erase(open);
  const ErrorAside error;
  if (const auto node = ended->node.lock()) node->del_post_hook(ended->hook);
  ended->arguments.clear();
  ended->scope.reset();
}

// Note [A forward() that throws]: a kept exception keeps the frame with ctx and handle, so the
// handle lives on. But the autograd node is freed, so a hook that the node owns ends the call.
class EndWithNode final : public torch::autograd::FunctionPostHook {
 public:
  explicit EndWithNode(const std::shared_ptr<OpenCall>& call) : call_(call) {}
  EndWithNode(const EndWithNode&) = delete;
  EndWithNode& operator=(const EndWithNode&) = delete;
  ~EndWithNode() override {
    const std::shared_ptr<OpenCall> call = call_.lock();
    if (!call || !Py_IsInitialized()) return;
    const py::gil_scoped_acquire gil;
    end_call(call);
  }

  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& /*inputs*/) override {
    return outputs;
  }

 private:
  std::weak_ptr<OpenCall> call_;
};

std::shared_ptr<OpenCall> open_call(PyObject* ctx, const NamedCall& named) {
  auto call = std::make_shared<OpenCall>(OpenCall{.number = calls_opened++});
  call->arguments = tensors_of_forward(ctx);
  with_warnings_now(
      [&] { call->scope = std::make_unique<detail::NamedCallScope>(named, call->arguments); });
  open_calls.push_back(call);
  if (!THPFunction_Check(ctx)) return call;
  call->node = node_of(*reinterpret_cast<const THPFunction*>(ctx));
  if (const auto node = call->node.lock())
    call->hook = node->add_post_hook(std::make_unique<EndWithNode>(call));
  return call;
}

/// The result of get_handle(). User code may set it as an attribute of the ctx.
class Handle {
 public:
  // Refers to a node's ctx weakly, since a strong reference could make a cycle that nobody frees.
  Handle(const py::object& ctx, NamedCall named)
      : ctx_(THPFunction_Check(ctx.ptr()) ? py::object(py::weakref(ctx)) : ctx),
        named_(std::move(named)) {
    if (!detail::is_in_region()) return;
    call_ = open_call(ctx.ptr(), named_);
    skipped_ = call_->scope->is_skipped();
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { end_call(call_); }

  py::object maybe_load_saved() {
    if (!skipped_ || !is_open()) return py::none();
    py::object loaded =
        py::reinterpret_steal<py::object>(load_marked(call_->scope->results(), ctx().ptr()));
    end_call(call_);
    return loaded;
  }

  py::object save_or_load_inputs(const py::args& inputs) {
    check_loaded("save_or_load_inputs");
    for (const py::handle input : inputs) {
      if (is_open() && !named_.is_saved() && THPVariable_Check(input.ptr()))
        recompute_needs_tensor(THPVariable_Unpack(input.ptr()));
    }
    return one_or_all(inputs);
  }

  void save_for_backward(const py::object& tensors) {
    check_loaded("save_for_backward");
    TORCH_CHECK(
        !call_ || is_open(), "[get_handle] ", named_.str(),
        ", save_for_backward: expected to be called before record_outputs(), which ends the "
        "call, got it called after. Call it before.");
    NamedTensors saved = save_named(ctx().ptr(), tensors.ptr(),
                                    "[get_handle] " + named_.str() + ", save_for_backward");
    if (is_open()) saved_ = std::move(saved);
  }

  py::object record_outputs(const py::args& outputs) {
    check_loaded("record_outputs");
    py::object returned = one_or_all(outputs);
    if (!is_open()) return returned;
    call_->scope->check_innermost(named_);
    CallResults results = take_apart(returned.ptr(), named_, "get_handle");
    check_no_new_leaf(results, call_->arguments, named_, "get_handle");
    const py::object of = ctx();
    add_marks(results, of.ptr());
    expect_saved(of.ptr());
    call_->scope->finish(results);
    end_call(call_);
    return returned;
  }

  std::string show() const { return "<RematHandle of " + named_.str() + ">"; }

 private:
  bool is_open() const { return call_ && call_->scope; }

  py::object ctx() const {
    if (!PyWeakref_Check(ctx_.ptr())) return ctx_;
    py::object ctx = ctx_();
    TORCH_CHECK(!ctx.is_none(), "[get_handle] ", named_.str(),
                ": expected to be used while its forward() runs, got a ctx that is gone.");
    return ctx;
  }

  /// Tells the scope what the ctx saves. A later ctx.save_for_backward() in forward() may have
  /// replaced the tensors that have names; the new ones are named saved.<i>.
  void expect_saved(PyObject* ctx) {
    const NamedTensors named = std::exchange(saved_, {});
    const std::vector<at::Tensor> saved = saved_by(ctx);
    std::vector<std::string> names;
    for (const auto i : c10::irange(saved.size())) {
      const bool has_name = i < named.tensors.size() && named.tensors[i].is_same(saved[i]);
      names.push_back(has_name ? named.names[i] : c10::str("saved.", i));
    }
    call_->scope->expect_saved(names, saved, saving_of(ctx));
  }

  void check_loaded(const char* what) const {
    TORCH_CHECK(
        !skipped_, "[get_handle] ", named_.str(), ", ", what,
        ": expected forward() to return what maybe_load_saved() gives it in the replay of a SAVE "
        "call, must call maybe_load_saved; got a forward() that goes on. Write: if (out := "
        "handle.maybe_load_saved()) is not None: return out");
  }

  static py::object one_or_all(const py::args& values) {
    if (values.size() == 1) return py::reinterpret_borrow<py::object>(values[0]);
    return values;
  }

  py::object ctx_;  // the ctx, or a weak reference to the ctx
  NamedCall named_;
  std::shared_ptr<OpenCall> call_;  // null outside regions
  NamedTensors saved_;              // saved tensors with names
  bool skipped_ = false;
};

std::unique_ptr<Handle> get_handle(const py::object& ctx, const py::object& name,
                                   const py::object& policy, const std::string& keep) {
  TORCH_CHECK_TYPE(py::hasattr(ctx, "save_for_backward"),
                   "[get_handle] ctx: expected the ctx that forward() was given, got ",
                   type_of(ctx.ptr()), ".");
  if (name.is_none() && policy.is_none()) {
    const NamedCall* const call = OpContext::take();
    TORCH_CHECK_VALUE(
        call || !detail::is_in_region(),
        "[get_handle] expected to be called in the forward() of a function that is called by "
        "op(F.apply, name, policy)(args), got another caller. Call it so, or give get_handle() a "
        "name and a policy.");
    return std::make_unique<Handle>(ctx, call ? *call : NamedCall{.name = "outside of regions"});
  }
  TORCH_CHECK(PyUnicode_Check(name.ptr()), "[get_handle] name: expected a string, got ",
              type_of(name.ptr()), ".");
  NamedCall call{.name = name.cast<std::string>(),
                 .policy = policy_of("get_handle", policy.ptr()),
                 .keep = keep_of("get_handle", keep)};
  detail::check_call_name(call, "get_handle");
  OpContext::take();  // tells a surrounding op() that its forward() takes part
  return std::make_unique<Handle>(ctx, std::move(call));
}

void save_for_backward(const py::object& ctx, const py::object& tensors) {
  TORCH_CHECK_TYPE(py::hasattr(ctx, "save_for_backward"),
                   "[save_for_backward] ctx: expected the ctx that forward() was given, got ",
                   type_of(ctx.ptr()), ".");
  const NamedTensors saved = save_named(ctx.ptr(), tensors.ptr(), "[save_for_backward]");
  detail::name_saved(saved.names, saved.tensors);
}

}  // namespace

HandleBound::HandleBound() : opened_before_(calls_opened) {}

HandleBound::~HandleBound() {
  for (size_t i = open_calls.size(); i-- > 0 && open_calls[i]->number >= opened_before_;)
    end_call(open_calls[i]);
}

void add_remat_handle(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  py::class_<Handle>(m, "RematHandle", kRematHandleDoc)
      .def("maybe_load_saved", torch::wrap_pybind_function(&Handle::maybe_load_saved),
           kMaybeLoadSavedDoc)
      .def("save_or_load_inputs", torch::wrap_pybind_function(&Handle::save_or_load_inputs),
           kSaveOrLoadInputsDoc)
      .def("save_for_backward", torch::wrap_pybind_function(&Handle::save_for_backward),
           py::arg("tensors"), kHandleSaveDoc)
      .def("record_outputs", torch::wrap_pybind_function(&Handle::record_outputs),
           kRecordOutputsDoc)
      .def("__repr__", &Handle::show);
  m.def("get_handle", torch::wrap_pybind_function(get_handle), py::arg("ctx"),
        py::arg("name") = py::none(), py::arg("policy") = py::none(),
        py::arg("keep") = "innermost_region", kGetHandleDoc);
  m.def("save_for_backward", torch::wrap_pybind_function(save_for_backward), py::arg("ctx"),
        py::arg("tensors"), kSaveForBackwardDoc);
}

}  // namespace remat::python
