// SPDX-License-Identifier: BSD-3-Clause

// The three calls of checkpoint(options)(fn)(args...). The third call opens a region and calls
// `fn`; the region's replay calls `fn` again.
#include "bindings.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <remat/backend/forward_region.h>
#include <remat/engine/region_body.h>
#include <remat/engine/region_label.h>

#include "argument_tree.h"
#include "before_region.h"
#include "docstrings.h"
#include "errors.h"
#include "function_wrapper.h"
#include "named_calls.h"
#include "owned_object.h"
#include "python_state.h"
#include "settings.h"
#include "tensor_hooks.h"

namespace remat::python {
namespace {

/// Identifies a function by its code. Functions that one def or lambda makes give equal results,
/// and so do other callables of one class.
size_t code_of(PyObject* function) {
  if (PyMethod_Check(function)) function = PyMethod_GET_FUNCTION(function);
  void* const code = PyFunction_Check(function) ? static_cast<void*>(PyFunction_GET_CODE(function))
                                                : static_cast<void*>(Py_TYPE(function));
  return reinterpret_cast<size_t>(code);
}

/// Note [Checkpoints left open]: torch.utils.checkpoint(use_reentrant=False) removes its hooks from
/// PyTorch's stack when a generator in its frame continues. After an exception the generator
/// continues only when the traceback is freed. By then the replay has restored the stack, and the
/// wrong hooks would be removed. So generators are closed when the exception leaves the region.
void close_checkpoints(py::handle traceback) {
  for (; !traceback.is_none(); traceback = traceback.attr("tb_next")) {
    const py::object frame = traceback.attr("tb_frame");
    const py::object code = frame.attr("f_code");
    const py::object module = frame.attr("f_globals").attr("get")("__name__");
    const bool is_checkpoint = py::str(code.attr("co_name")).equal(py::str("checkpoint")) &&
                               module.equal(py::str("torch.utils.checkpoint"));
    if (!is_checkpoint) continue;
    const py::object generator = frame.attr("f_locals").attr("get")("gen");
    if (py::hasattr(generator, "close")) generator.attr("close")();
  }
}

/// Throws the Python error that is set. Closes the checkpoints that the error has left open.
[[noreturn]] void throw_escaped() {
  py::error_already_set error;
  try {
    if (error.trace()) close_checkpoints(error.trace());
  } catch (py::error_already_set& other) {
    other.discard_as_unraisable("remat: closing torch.utils.checkpoint after an exception");
  }
  error.restore();
  throw_python_error();
}

/// A callable with its arguments, and the state of Python at the call. Construct under the GIL; the
/// overrides of RegionBody's functions take the GIL themselves.
class PythonBody final : public RegionBody {
 public:
  /// Appends the tensors in `arguments` to `inputs`. `region` is the region's name. Throws
  /// python_error.
  PythonBody(PyObject* function, const CallArguments& arguments, std::string region,
             std::vector<at::Tensor>& inputs)
      : identity_(code_of(function)),
        parts_(new Parts{
            THPObjectPtr(Py_NewRef(function)), {arguments, inputs}, {}, {}, std::move(region)}) {}

  ~PythonBody() override {
    if (!interpreter_lives()) {
      static_cast<void>(parts_.release());  // NOLINT: Python has ended and cannot free them
      return;
    }
    const py::gil_scoped_acquire gil;
    const ErrorAside error;
    parts_.reset();
  }

  /// Call after the function's forward. Needs the GIL.
  void finish_forward() { parts_->hook_handle_ids.finish_forward(); }

  size_t identity() const override { return identity_; }

  std::shared_ptr<const void> run(c10::ArrayRef<at::Tensor> inputs) const override {
    const py::gil_scoped_acquire gil;
    const CompilerAside compiler;
    const PythonStateScope state(parts_->state);
    const HookHandleIdsAgain hook_handle_ids(parts_->hook_handle_ids);
    const HandleBound bound;
    THPObjectPtr result(parts_->arguments.call(parts_->function, inputs));
    if (result) return share(result.get());
    if (PyErr_ExceptionMatches(stop_replay_class())) {
      PyErr_Clear();
      return nullptr;
    }
    throw_escaped();
  }

  std::unique_ptr<KeptHooks> keep_hooks(c10::ArrayRef<at::Tensor> tensors) const override {
    const py::gil_scoped_acquire gil;
    return std::make_unique<TensorHookDicts>(tensors);
  }

  void stop() const override {
    const py::gil_scoped_acquire gil;
    if (handles_stop()) return;
    python_error error;
    error.type = Py_NewRef(stop_replay_class());
    throw error;
  }

  // Returns true only for interrupts. Anything else was raised by a `finally` block while the stop
  // unwound, and is dropped.
  bool outranks_stop(const std::exception_ptr& escaped) const override {
    const py::gil_scoped_acquire gil;
    return is_interrupt(escaped);
  }

  [[noreturn]] void rethrow(const std::exception_ptr& error,
                            const std::exception_ptr& escaped) const override {
    const std::string note = "[replay] " + region_label(parts_->region) +
                             ": raised when its function ran again, in backward";
    rethrow_in_python(error, escaped, note.c_str());
  }

 private:
  struct Parts {
    THPObjectPtr function;
    ArgumentTree arguments;
    PythonState state;
    HookHandleIds hook_handle_ids;
    std::string region;
  };

  size_t identity_;
  std::unique_ptr<Parts> parts_;  // destroyed under the GIL
};

PyTypeObject* checkpoint_builder_type = nullptr;
PyTypeObject* checkpointed_type = nullptr;

/// True while torch.fx traces with proxies in place of tensors. records_regions() does not notice
/// this tracer, because proxies call no op.
bool fx_traces() {
  static PyObject* module = nullptr;  // Note [Imports and the GIL]
  static PyObject* const name = PyUnicode_InternFromString("_is_fx_tracing_flag");
  static PyObject* const of_threads = PyUnicode_InternFromString("_is_fx_tracing_tls");
  static PyObject* const name_in_thread = PyUnicode_InternFromString("flag");
  if (!module) module = imported("torch.fx._symbolic_trace", "__dict__");
  PyObject* flag = PyDict_GetItemWithError(module, name);
  if (!flag) {  // since torch 2.14 each thread has a flag
    PyObject* const threads = PyDict_GetItemWithError(module, of_threads);
    THPObjectPtr own(threads ? PyObject_GetAttrString(threads, "__dict__") : nullptr);
    flag = own ? PyDict_GetItemWithError(own.get(), name_in_thread) : nullptr;
  }
  return flag && PyObject_IsTrue(flag) == 1;
}

PyObject* call_plainly(const Settings& settings, PyObject* function,
                       const CallArguments& arguments) {
  THPObjectPtr output(arguments.pass_to(function));
  if (!output || settings.output_rule == OutputRule::kAnyLeaf || fx_traces())
    return output.release();
  std::vector<at::Tensor> tensors;
  take_output(output, settings.output_rule, settings.options.name, tensors);
  return output.release();
}

/// True inside a transform of torch.func or a level of forward-mode AD.
///
/// Note [Regions in transforms]: each level of grad, vmap, jvp... has a graph and tensors of its
/// own. A replay would have to find the same levels again, and saved tensors have no hooks there.
/// So regions run as plain calls, whose results are right, and nothing is recomputed.
bool transforms() {
  constexpr auto key = c10::DispatchKey::FuncTorchDynamicLayerFrontMode;
  return c10::impl::tls_is_dispatch_key_included(key) ||
         torch::autograd::ForwardADLevel::try_get_by_idx(0);
}

void warn_of_transform(const std::string& region) {
  TORCH_WARN_ONCE("[checkpoint] ", region_label(region),
                  ": called inside of a transform of torch.func or a level of forward-mode AD, "
                  "where regions are plain "
                  "calls: results are right, nothing is recomputed. This is said once.");
}

/// Calls `function` as a region. Returns a new reference, or null with Python's error set; may
/// throw as well.
PyObject* call_region(const Settings& settings, PyObject* function,
                      const CallArguments& arguments) {
  if (!detail::records_regions() || fx_traces()) return call_plainly(settings, function, arguments);
  if (transforms()) {
    warn_of_transform(settings.options.name);
    return call_plainly(settings, function, arguments);
  }
  before_region(settings, function);
  std::vector<at::Tensor> tensors;
  auto body = std::make_unique<PythonBody>(function, arguments, settings.options.name, tensors);
  PythonBody& running = *body;
  std::optional<detail::ForwardRegion> region(std::in_place, settings.options, std::move(body),
                                              tensors);
  const bool grad_mode = c10::GradMode::is_enabled();
  THPObjectPtr output;
  {
    const HandleBound bound;
    const CompilerAside compiler;
    output = arguments.pass_to(function);
  }
  if (!output) {
    // Code that torch.compile generates switches grad mode off and later on again. If it raises
    // before that, grad mode stays off, so restore it here.
    c10::GradMode::set_enabled(grad_mode);
    const ErrorAside error;
    region.reset();
    return nullptr;
  }
  running.finish_forward();
  tensors.clear();
  take_output(output, settings.output_rule, settings.options.name, tensors);
  region->finish(tensors);
  region.reset();
  return output.release();
}

/// Rejects a class of modules, because calling it would construct a module and compute nothing.
void check_no_module_class(PyObject* function) {
  static PyObject* module = nullptr;  // Note [Imports and the GIL]
  if (!PyType_Check(function)) return;
  if (!module) module = imported("torch.nn", "Module");
  const int is_module_class = PyObject_IsSubclass(function, module);
  if (is_module_class < 0) throw python_error();
  const std::string name = reinterpret_cast<PyTypeObject*>(function)->tp_name;
  TORCH_CHECK_TYPE(!is_module_class,
                   "[checkpoint] fn: expected a module or a function, got the class ", name,
                   ". Pass an instance: ", name, "(...).");
}

PyObject* call_checkpoint_builder(PyObject* object, PyObject* const* values, size_t flags,
                                  PyObject* keywords) {
  HANDLE_TH_ERRORS
  const CallArguments arguments = arguments_of(values, flags, keywords);
  TORCH_CHECK_TYPE(arguments.count() == 1 && arguments.positional == 1,
                   "[checkpoint] fn: expected one function in the second call, got ",
                   arguments.count(),
                   " arguments. Write checkpoint(options)(fn)(args...): the arguments go into the "
                   "third.");
  TORCH_CHECK_TYPE(PyCallable_Check(values[0]), "[checkpoint] fn: expected a function, got ",
                   type_of(values[0]), ". Write checkpoint(options)(fn)(args...).");
  check_no_module_class(values[0]);
  return make_wrapper(checkpointed_type, call_wrapped<Settings, call_region>, state_of(object),
                      values[0]);
  END_HANDLE_TH_ERRORS
}

void set_option(Settings& settings, PyObject* name, PyObject* value) {
  Py_ssize_t size = 0;
  const char* const bytes = PyUnicode_AsUTF8AndSize(name, &size);
  if (!bytes) throw python_error();
  set_option(settings, std::string_view(bytes, static_cast<size_t>(size)), value);
}

PyObject* make_builder(std::shared_ptr<Settings> settings) {
  detail::check_options(settings->options, "checkpoint");
  return make_wrapper(checkpoint_builder_type, call_checkpoint_builder, std::move(settings),
                      nullptr);
}

PyObject* checkpoint(PyObject* /*module*/, PyObject* const* values, Py_ssize_t count,
                     PyObject* keywords) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(
      count == 0, "[checkpoint] options: expected options by keyword in the first call, got ",
      type_of(values[0]),
      ". Write checkpoint(options)(fn)(args...), for example "
      "checkpoint(region_name=\"block\")(fn)(x), or checkpoint()(fn)(x); as a decorator "
      "@checkpoint(). For torch's form call torch_checkpoint(fn, x).");
  auto settings = std::make_shared<Settings>();
  const Py_ssize_t options = keywords ? PyTuple_GET_SIZE(keywords) : 0;
  if (options == 0) return make_builder(std::move(settings));
  THPObjectPtr given(PyDict_New());
  if (!given) throw python_error();
  for (Py_ssize_t i = 0; i < options; ++i) {
    PyObject* const name = PyTuple_GET_ITEM(keywords, i);
    set_option(*settings, name, values[i]);
    if (PyDict_SetItem(given, name, values[i]) < 0) throw python_error();
  }
  settings->keywords = share(given);
  return make_builder(std::move(settings));
  END_HANDLE_TH_ERRORS
}

/// Called by pickle with (keywords) or (keywords, function). Returns checkpoint(**keywords) or
/// checkpoint(**keywords)(function).
PyObject* rebuild(PyObject* module, PyObject* arguments) {
  PyObject* keywords = nullptr;
  PyObject* function = nullptr;
  if (!PyArg_ParseTuple(arguments, "O!|O", &PyDict_Type, &keywords, &function)) return nullptr;
  HANDLE_TH_ERRORS
  const py::object builder =
      py::handle(module).attr("checkpoint")(**py::reinterpret_borrow<py::dict>(keywords));
  return (function ? builder(py::handle(function)) : builder).inc_ref().ptr();
  END_HANDLE_TH_ERRORS
}

PyMethodDef checkpoint_functions[] = {
    {"checkpoint", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(checkpoint)),
     METH_FASTCALL | METH_KEYWORDS, kCheckpointDoc},
    {"_rebuild", rebuild, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

}  // namespace

void add_checkpoint(PyObject* module) {
  checkpoint_builder_type =
      add_wrapper_type(module, "remat_meta._C.CheckpointBuilder",
                       "The result of checkpoint(options): call it with the function.");
  checkpointed_type = add_wrapper_type(module, "remat_meta._C.Checkpointed",
                                       "A function whose calls are checkpointed.");
  checked(PyModule_AddFunctions(module, checkpoint_functions));
}

}  // namespace remat::python
