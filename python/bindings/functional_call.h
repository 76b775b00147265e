// SPDX-License-Identifier: BSD-3-Clause

// What torch.func.functional_call has put into modules.
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

/// Note [functional_call]: it exchanges a module's parameters while it runs, and puts them back
/// before backward. A replay of a region inside does the same again, with the tensors that the
/// forward had. The calls that are open on a thread are known from _functional.py.

/// A tuple of them, the outermost first, new; null if there are none. Throws python_error.
PyObject* open_functional_calls();

/// Puts the tensors into the modules again. Returns what leave_functional_calls() takes.
PyObject* enter_functional_calls(PyObject* calls);

/// Puts the modules' own back; `entered` may be null. Leaves no error.
void leave_functional_calls(PyObject* entered);

/// The functions that Python calls.
void add_functional_calls(PyObject* module);

}  // namespace remat::python
