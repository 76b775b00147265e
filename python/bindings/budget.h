// SPDX-License-Identifier: BSD-3-Clause

// Measures steps and plans them for budgets, for Python.
#pragma once

#include <torch/csrc/python_headers.h>

#include <remat/engine/cuts.h>

namespace remat::python {

/// If `value` is a PlannedCuts (or a MemoryPlan), sets `cuts` and returns true. Call under the GIL.
bool take_planned_cuts(PyObject* value, Cuts& cuts);
bool take_plan(PyObject* value, Cuts& cuts);

/// Adds StepProfile, MemoryPlan and the functions that make them. Throws pybind11's exceptions.
void add_budget(PyObject* module);

}  // namespace remat::python
