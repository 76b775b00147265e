// SPDX-License-Identifier: BSD-3-Clause

// The state of Python that a region's function must find again when it runs again.
#pragma once

#include <torch/csrc/python_headers.h>

#include <ATen/PythonTorchFunctionTLS.h>

namespace remat::python {

/// The context variables and the default device of the thread, and whether subclasses of tensors
/// get to see what is called, as they are when made. Made, used and destroyed under the GIL.
///
/// Of torch's function modes only a default device (`with torch.device(...)`, set_default_device)
/// is set again for a replay, as in torch.utils.checkpoint; other function modes and dispatch modes
/// are those of the thread that runs backward.
class PythonState {
 public:
  PythonState();
  PythonState(const PythonState&) = delete;
  PythonState& operator=(const PythonState&) = delete;
  ~PythonState();

 private:
  friend class PythonStateScope;

  PyObject* context_;  // contextvars.Context
  PyObject* device_;   // torch.device, or null
  // A backward that starts at a subclass runs with it disabled.
  at::impl::TorchFunctionDisabledState torch_function_;
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
  PyObject* device_mode_ = nullptr;
  const at::impl::TorchFunctionDisabledState torch_function_;  // outside
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
