// SPDX-License-Identifier: BSD-3-Clause

// Runs a Python function again and ends it early.
#include "python_body.h"

#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <utility>

#include <remat/engine/region_label.h>

#include "errors.h"
#include "owned_object.h"
#include "remat_handle.h"
#include "tensor_hooks.h"

namespace remat::python {
namespace {

namespace py = pybind11;

/// Identifies a function's code: lambdas from one line are equal, and so are modules of one class.
size_t code_of(PyObject* function) {
  if (PyMethod_Check(function)) function = PyMethod_GET_FUNCTION(function);
  void* const code = PyFunction_Check(function) ? static_cast<void*>(PyFunction_GET_CODE(function))
                                                : static_cast<void*>(Py_TYPE(function));
  return reinterpret_cast<size_t>(code);
}

/// Note [Checkpoints left open]: torch.utils.checkpoint(use_reentrant=False) removes its hooks from
/// PyTorch's stack when a generator in its frame continues. After an exception that happens when
/// the traceback is freed; by then the replay has restored the stack, and the wrong hooks would be
/// removed. So the generators are closed when the exception leaves the function.
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

/// Throws the Python error that is set and has left the function.
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

}  // namespace

struct PythonBody::Parts {
  Parts(PyObject* fn, const CallArguments& args, std::string name, std::vector<at::Tensor>& inputs)
      : function(Py_NewRef(fn)), arguments(args, inputs), region(std::move(name)) {}

  THPObjectPtr function;
  ArgumentTree arguments;
  PythonState state;
  HookHandleIds hook_handle_ids;
  std::string region;
};

PythonBody::PythonBody(PyObject* function, const CallArguments& arguments, std::string region,
                       std::vector<at::Tensor>& inputs)
    : identity_(code_of(function)),
      parts_(std::make_unique<Parts>(function, arguments, std::move(region), inputs)) {}

PythonBody::~PythonBody() {
  if (!interpreter_lives()) {
    static_cast<void>(parts_.release());  // NOLINT: nobody can free them any more
    return;
  }
  const pybind11::gil_scoped_acquire gil;
  const ErrorAside error;
  parts_.reset();
}

void PythonBody::finish_forward() {
  parts_->hook_handle_ids.finish_forward();
}

std::shared_ptr<const void> PythonBody::run(c10::ArrayRef<at::Tensor> inputs) const {
  const pybind11::gil_scoped_acquire gil;
  const CompilerAside compiler;
  const PythonStateScope state(parts_->state);
  const HookHandleIdsAgain hook_handle_ids(parts_->hook_handle_ids);
  const HandleBound bound;
  THPObjectPtr result(parts_->arguments.call(parts_->function, inputs));
  if (result) return share(result.get());
  if (PyErr_ExceptionMatches(stop_replay_class())) {
    PyErr_Clear();
    throw StopReplay{};
  }
  throw_escaped();
}

std::unique_ptr<KeptHooks> PythonBody::keep_hooks(c10::ArrayRef<at::Tensor> tensors) const {
  const pybind11::gil_scoped_acquire gil;
  return std::make_unique<TensorHookDicts>(tensors);
}

void PythonBody::stop() const {
  const pybind11::gil_scoped_acquire gil;
  if (handles_stop()) return;
  python_error error;
  error.type = Py_NewRef(stop_replay_class());
  throw error;
}

// True for a KeyboardInterrupt or SystemExit, which a user's finally block does not raise.
bool PythonBody::outranks_stop(const std::exception_ptr& escaped) const {
  const pybind11::gil_scoped_acquire gil;
  return is_interrupt(escaped);
}

void PythonBody::rethrow(const std::exception_ptr& error, const std::exception_ptr& escaped) const {
  const std::string note = "[replay] " + region_label(parts_->region) +
                           ": raised when its function ran again, in backward";
  rethrow_in_python(error, escaped, note.c_str());
}

}  // namespace remat::python
