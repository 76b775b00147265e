// SPDX-License-Identifier: BSD-3-Clause

// CheckpointPolicy, which is a Python enum, as C++ has it.
#pragma once

#include <torch/csrc/python_headers.h>

#include <remat/policy/policy.h>

namespace remat::python {

/// The members SAVE, RECOMPUTE and OFFLOAD, once, from Python: they are kept for good.
void set_policy_objects(PyObject* const* members);

/// Throws c10::Error that begins with `where` if `object` is none of the members.
Policy policy_of(const char* where, PyObject* object);

/// Borrowed.
PyObject* object_of(Policy policy);

}  // namespace remat::python
