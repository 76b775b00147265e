// SPDX-License-Identifier: BSD-3-Clause

// The state of Python that a region's function must find again when it runs again.
#pragma once

#include <torch/csrc/python_headers.h>

#include <ATen/PythonTorchFunctionTLS.h>

namespace remat::python {

/// The context variables and the default device of the thread, and whether subclasses of tensors
/// get to see what is called, as they are when made. Made, used and destroyed under the GIL.
///
/// torch's function modes (a default device among them) and what torch.func.functional_call has put
/// into modules are set again for a replay; dispatch modes are those of the thread that runs
/// backward.
class PythonState {
 public:
  PythonState();
  PythonState(const PythonState&) = delete;
  PythonState& operator=(const PythonState&) = delete;
  ~PythonState();

 private:
  friend class PythonStateScope;

  PyObject* context_;           // contextvars.Context
  PyObject* functional_calls_;  // what is swapped into modules, or null: see functional_call.h
  PyObject* device_;  // of the innermost default-device mode, as torch's compiler asks for it
  // A backward that starts at a subclass runs with it disabled.
  at::impl::PythonTorchFunctionTLS torch_function_;
};

/// While alive, this thread runs in a copy of `state`. Under the GIL.
class PythonStateScope {
 public:
  explicit PythonStateScope(const PythonState& state);
  PythonStateScope(const PythonStateScope&) = delete;
  PythonStateScope& operator=(const PythonStateScope&) = delete;
  ~PythonStateScope();

 private:
  PyObject* context_ = nullptr;
  PyObject* functional_calls_ = nullptr;                   // entered
  PyObject* device_ = nullptr;                             // outside, if it is another one
  const at::impl::PythonTorchFunctionTLS torch_function_;  // outside
};

/// While alive, torch.compile does not compile the Python code that this thread calls, unless that
/// code asks for it: it would in the forward only, and the replay would save other tensors.
class CompilerAside {
 public:
  CompilerAside();
  CompilerAside(const CompilerAside&) = delete;
  CompilerAside& operator=(const CompilerAside&) = delete;
  ~CompilerAside();

 private:
  PyObject* prior_ = nullptr;  // null: it was not at work
};

}  // namespace remat::python
