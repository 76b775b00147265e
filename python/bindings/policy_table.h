// SPDX-License-Identifier: BSD-3-Clause

// Python's policy tables and policy functions.
#pragma once

#include <torch/csrc/python_headers.h>

#include <memory>

#include <remat/tape/region_policy.h>

#include "owned_object.h"

namespace remat::python {

/// Adds PolicyTable and the presets.
void add_policy_table(PyObject* module);

/// Makes a policy of a PolicyTable, the name of a preset, a list of ops to SAVE, or a function,
/// which `keep` then holds. Throws TypeError or ValueError.
std::shared_ptr<const RegionPolicy> make_region_policy(PyObject* value, SharedObject& keep);

}  // namespace remat::python
