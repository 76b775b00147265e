// SPDX-License-Identifier: BSD-3-Clause

// Policy tables and functions of Python.
#pragma once

#include <torch/csrc/python_headers.h>

#include <memory>

#include <remat/tape/region_policy.h>

#include "owned_object.h"

namespace remat::python {

/// Adds PolicyTable and the presets.
void add_policy_table(PyObject* module);

/// A PolicyTable, the name of a preset, a list of ops to SAVE, or a function, as a policy; `keep`
/// then holds the function. Throws TypeError or ValueError.
std::shared_ptr<const RegionPolicy> make_region_policy(PyObject* value, SharedObject& keep);

}  // namespace remat::python
