// SPDX-License-Identifier: BSD-3-Clause

// Python's policies: CheckpointPolicy, which is a Python enum, policy tables and policy functions.
#pragma once

#include <torch/csrc/python_headers.h>

#include <memory>

#include <remat/engine/region_policy.h>
#include <remat/policy/policy.h>

#include "owned_object.h"

namespace remat::python {

/// Sets the Python objects for SAVE, RECOMPUTE and OFFLOAD, which are never freed. Call once.
void set_policy_objects(PyObject* const* members);

/// Converts a member of CheckpointPolicy. Other objects throw c10::Error that begins with `where`.
Policy policy_of(const char* where, PyObject* object);

/// The member of CheckpointPolicy for `policy`, borrowed.
PyObject* object_of(Policy policy);

/// Adds PolicyTable and the presets.
void add_policy_table(PyObject* module);

/// Makes a policy from a PolicyTable, the name of a preset, a list of ops to SAVE, or a function.
/// If `value` is a function, `keep` receives it, too. Throws TypeError or ValueError.
std::shared_ptr<const RegionPolicy> make_region_policy(PyObject* value, SharedObject& keep);

}  // namespace remat::python
