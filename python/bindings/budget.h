// SPDX-License-Identifier: BSD-3-Clause

// Measuring steps and planning them for budgets, for Python.
#pragma once

#include <torch/csrc/python_headers.h>

namespace remat::python {

/// Adds StepProfile, MemoryPlan and what measures and makes them. Throws what pybind11 throws.
void add_budget(PyObject* module);

}  // namespace remat::python
