// SPDX-License-Identifier: BSD-3-Clause

// The state of Python that a replay restores for the region's function.
#pragma once

#include <torch/csrc/python_headers.h>

#include <ATen/PythonTorchFunctionTLS.h>
#include <pybind11/pybind11.h>

namespace remat::python {

/// The thread's context variables and default device, and whether __torch_function__ is enabled, at
/// the time of construction. Construct, use and destroy under the GIL.
///
/// A replay restores torch's function modes (a default device among them) and the tensors that
/// torch.func.functional_call has swapped into modules. Dispatch modes are not restored; those of
/// the thread that runs backward apply.
class PythonState {
 public:
  PythonState();

 private:
  friend class PythonStateScope;

  pybind11::object context_;           // contextvars.Context
  pybind11::object functional_calls_;  // swapped tensors, or null: see Note [functional_call]
  pybind11::object device_;            // CURRENT_DEVICE of torch.utils._device
  // Restored because a backward that starts at a subclass runs with __torch_function__ disabled.
  at::impl::PythonTorchFunctionTLS torch_function_;
};

/// While alive, lets this thread run in a copy of `state`. Use under the GIL.
class PythonStateScope {
 public:
  explicit PythonStateScope(const PythonState& state);
  PythonStateScope(const PythonStateScope&) = delete;
  PythonStateScope& operator=(const PythonStateScope&) = delete;
  ~PythonStateScope();

 private:
  PyObject* context_ = nullptr;
  PyObject* functional_calls_ = nullptr;  // the destructor leaves these; may be null
  PyObject* device_ = nullptr;            // the destructor sets it again; may be null
  const at::impl::PythonTorchFunctionTLS torch_function_;  // the destructor sets it again
};

/// While alive, prevents torch.compile from compiling Python code that this thread calls, unless
/// that code requests it. If only the forward were compiled, the replay would save other tensors.
class CompilerAside {
 public:
  CompilerAside();
  CompilerAside(const CompilerAside&) = delete;
  CompilerAside& operator=(const CompilerAside&) = delete;
  ~CompilerAside();

 private:
  PyObject* prior_ = nullptr;  // null if the compiler was not active
};

/// Adds the functions that _functional.py calls.
void add_functional_calls(PyObject* module);

}  // namespace remat::python
