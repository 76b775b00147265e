// SPDX-License-Identifier: BSD-3-Clause

// Python's policies: CheckpointPolicy, which is a Python enum, policy tables and policy functions.
#pragma once

#include <torch/csrc/python_headers.h>

#include <memory>

#include <remat/engine/region_policy.h>
#include <remat/policy/policy.h>

#include "owned_object.h"

namespace remat::python {

/// Takes the members SAVE, RECOMPUTE and OFFLOAD from Python. Call once; they are never freed.
void set_policy_objects(PyObject* const* members);

/// Throws c10::Error that begins with `where` if `object` is not one of the members.
Policy policy_of(const char* where, PyObject* object);

/// Borrowed.
PyObject* object_of(Policy policy);

/// Adds PolicyTable and the presets.
void add_policy_table(PyObject* module);

/// Makes a policy of a PolicyTable, the name of a preset, a list of ops to SAVE, or a function,
/// which `keep` then holds. Throws TypeError or ValueError.
std::shared_ptr<const RegionPolicy> make_region_policy(PyObject* value, SharedObject& keep);

}  // namespace remat::python
