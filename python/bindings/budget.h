// SPDX-License-Identifier: BSD-3-Clause

// Measuring steps and planning them for budgets, for Python.
#pragma once

#include <torch/csrc/python_headers.h>

#include <remat/tape/cuts.h>

namespace remat::python {

/// If `value` is cuts on their way through Python, or a MemoryPlan: what it cuts. Under the GIL.
bool take_planned_cuts(PyObject* value, Cuts& cuts);
bool take_plan(PyObject* value, Cuts& cuts);

/// Adds StepProfile, MemoryPlan and what measures and makes them. Throws what pybind11 throws.
void add_budget(PyObject* module);

}  // namespace remat::python
