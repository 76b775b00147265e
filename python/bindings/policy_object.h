// SPDX-License-Identifier: BSD-3-Clause

// Conversions for CheckpointPolicy, which is a Python enum.
#pragma once

#include <torch/csrc/python_headers.h>

#include <remat/policy/policy.h>

namespace remat::python {

/// Takes the members SAVE, RECOMPUTE and OFFLOAD from Python. Call once; they are never freed.
void set_policy_objects(PyObject* const* members);

/// Throws c10::Error that begins with `where` if `object` is not one of the members.
Policy policy_of(const char* where, PyObject* object);

/// Borrowed.
PyObject* object_of(Policy policy);

}  // namespace remat::python
