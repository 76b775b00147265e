// SPDX-License-Identifier: BSD-3-Clause

// Handles of custom functions.
#include "remat_handle.h"

#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <remat/backend/named_call_scope.h>
#include <remat/backend/native_op.h>

#include "custom_functions.h"
#include "docstrings.h"
#include "errors.h"
#include "forward_results.h"
#include "named_call_run.h"
#include "owned_object.h"
#include "policy_object.h"
#include "warnings_now.h"

namespace remat::python {
namespace {

class Handle;
thread_local std::vector<Handle*> open_handles;  // the innermost last

/// The named call that forward() of a custom function is, from get_handle() to record_outputs().
class Handle {
 public:
  Handle(py::object ctx, NamedCall call) : ctx_(std::move(ctx)), call_(std::move(call)) {
    if (!detail::is_in_region()) return;
    const std::vector<at::Tensor> arguments = tensors_of_forward(ctx_.ptr());
    with_warnings_now([&] { scope_ = std::make_unique<detail::NamedCallScope>(call_, arguments); });
    arguments_ = arguments;
    skipped_ = scope_->is_skipped();
    open_handles.push_back(this);
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() { close(); }

  /// Without record_outputs(), the call counts as one that threw.
  void close() noexcept {
    if (!scope_) return;
    const ErrorAside error;
    open_handles.erase(std::remove(open_handles.begin(), open_handles.end(), this),
                       open_handles.end());
    arguments_.clear();
    scope_.reset();
  }

  py::object maybe_load_saved() {
    if (!skipped_ || !scope_) return py::none();
    py::object loaded =
        py::reinterpret_steal<py::object>(load_marked(scope_->results(), ctx_.ptr()));
    close();
    return loaded;
  }

  py::object save_or_load_inputs(const py::args& inputs) {
    check_loaded("save_or_load_inputs");
    for (const py::handle input : inputs) {
      if (scope_ && !call_.is_saved() && THPVariable_Check(input.ptr()))
        recompute_needs_tensor(THPVariable_Unpack(input.ptr()));
    }
    return one_or_all(inputs);
  }

  void save_for_backward(const py::object& tensors) {
    check_loaded("save_for_backward");
    const NamedTensors saved = save_named(ctx_.ptr(), tensors.ptr(),
                                          "[get_handle] " + call_.str() + ", save_for_backward");
    if (scope_) scope_->expect_saved(saved.names, saved.tensors, is_saving_for(ctx_.ptr()));
  }

  py::object record_outputs(const py::args& outputs) {
    check_loaded("record_outputs");
    py::object returned = one_or_all(outputs);
    if (!scope_) return returned;
    CallResults results = take_apart(returned.ptr(), call_, "get_handle");
    check_no_new_leaf(results, arguments_, call_, "get_handle");
    add_marks(results, ctx_.ptr());
    scope_->finish(results);
    close();
    return returned;
  }

  std::string show() const { return "<RematHandle of " + call_.str() + ">"; }

 private:
  void check_loaded(const char* what) const {
    TORCH_CHECK(
        !skipped_, "[get_handle] ", call_.str(), ", ", what,
        ": expected forward() to return what maybe_load_saved() gives it in the replay of a SAVE "
        "call, must call maybe_load_saved; got a forward() that goes on. Write: if (out := "
        "handle.maybe_load_saved()) is not None: return out");
  }

  static py::object one_or_all(const py::args& values) {
    if (values.size() == 1) return py::reinterpret_borrow<py::object>(values[0]);
    return values;
  }

  py::object ctx_;
  NamedCall call_;
  std::vector<at::Tensor> arguments_;
  std::unique_ptr<detail::NamedCallScope> scope_;  // null outside of regions, and once it has ended
  bool skipped_ = false;
};

std::unique_ptr<Handle> get_handle(py::object ctx, const py::object& name, const py::object& policy,
                                   const std::string& keep) {
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
    return std::make_unique<Handle>(std::move(ctx),
                                    call ? *call : NamedCall{.name = "outside of regions"});
  }
  TORCH_CHECK(PyUnicode_Check(name.ptr()), "[get_handle] name: expected a string, got ",
              type_of(name.ptr()), ".");
  NamedCall call{.name = name.cast<std::string>(),
                 .policy = policy_of("get_handle", policy.ptr()),
                 .keep = keep_of("get_handle", keep)};
  detail::check_call_name(call, "get_handle");
  OpContext::take();  // an op() around names this forward() by its handle
  return std::make_unique<Handle>(std::move(ctx), std::move(call));
}

void save_for_backward(const py::object& ctx, const py::object& tensors) {
  TORCH_CHECK_TYPE(py::hasattr(ctx, "save_for_backward"),
                   "[save_for_backward] ctx: expected the ctx that forward() was given, got ",
                   type_of(ctx.ptr()), ".");
  const NamedTensors saved = save_named(ctx.ptr(), tensors.ptr(), "[save_for_backward]");
  detail::name_saved(saved.names, saved.tensors);
}

}  // namespace

HandleBound::HandleBound() : open_before_(open_handles.size()) {}

HandleBound::~HandleBound() {
  while (open_handles.size() > open_before_) open_handles.back()->close();
}

void add_remat_handle(PyObject* module) {
  auto m = py::reinterpret_borrow<py::module_>(module);
  py::class_<Handle>(m, "RematHandle", kRematHandleDoc)
      .def("maybe_load_saved",
           torch::wrap_pybind_function([](Handle& self) { return self.maybe_load_saved(); }),
           kMaybeLoadSavedDoc)
      .def("save_or_load_inputs",
           torch::wrap_pybind_function([](Handle& self, const py::args& inputs) {
             return self.save_or_load_inputs(inputs);
           }),
           kSaveOrLoadInputsDoc)
      .def("save_for_backward",
           torch::wrap_pybind_function(
               [](Handle& self, const py::object& tensors) { self.save_for_backward(tensors); }),
           py::arg("tensors"), kHandleSaveDoc)
      .def("record_outputs", torch::wrap_pybind_function([](Handle& self, const py::args& outputs) {
             return self.record_outputs(outputs);
           }),
           kRecordOutputsDoc)
      .def("__repr__", &Handle::show);
  m.def("get_handle", torch::wrap_pybind_function(get_handle), py::arg("ctx"),
        py::arg("name") = py::none(), py::arg("policy") = py::none(),
        py::arg("keep") = "innermost_region", kGetHandleDoc);
  m.def("save_for_backward", torch::wrap_pybind_function(save_for_backward), py::arg("ctx"),
        py::arg("tensors"), kSaveForBackwardDoc);
}

}  // namespace remat::python
