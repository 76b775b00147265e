// SPDX-License-Identifier: BSD-3-Clause

// Repeats torch.func.functional_call in replays.
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

/// Note [functional_call]: it swaps a module's parameters while it runs, and restores them before
/// backward. A replay of a region inside swaps them again, with the tensors that the forward had.
/// _functional.py reports the calls that are open on a thread.

/// A tuple of the open calls, the outermost first, as a new reference; null if there are none.
/// Throws python_error.
PyObject* open_functional_calls();

/// Swaps the tensors into the modules again. Returns the argument for leave_functional_calls().
PyObject* enter_functional_calls(PyObject* calls);

/// Restores the modules' own tensors; `entered` may be null. Leaves no error set.
void leave_functional_calls(PyObject* entered);

/// Adds the functions that _functional.py calls.
void add_functional_calls(PyObject* module);

}  // namespace remat::python
