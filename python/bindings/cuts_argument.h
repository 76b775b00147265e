// SPDX-License-Identifier: BSD-3-Clause

// Converts the remat.Cuts of a Python caller.
#pragma once

#include <torch/csrc/python_headers.h>

#include "settings.h"

namespace remat::python {

/// Takes checkpoint(cuts=...): None, or an object with the attributes of remat.Cuts. Throws
/// TypeError or ValueError that names the wrong attribute.
void set_cuts(Settings& settings, PyObject* value);

/// Takes checkpoint(plan=...): None, or a MemoryPlan, which implies replay="tape" and its cuts.
void set_plan(Settings& settings, PyObject* value);

}  // namespace remat::python
