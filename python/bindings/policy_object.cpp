// SPDX-License-Identifier: BSD-3-Clause

// The members of the enum.
#include "policy_object.h"

#include <c10/util/Exception.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <array>

namespace remat::python {
namespace {

constexpr std::array kPolicies{Policy::kSave, Policy::kRecompute, Policy::kOffload};
std::array<PyObject*, kPolicies.size()> objects{};  // in the order of kPolicies

}  // namespace

void set_policy_objects(PyObject* const* members) {
  for (size_t i = 0; i < objects.size(); ++i) objects[i] = Py_NewRef(members[i]);
}

Policy policy_of(const char* where, PyObject* object) {
  for (size_t i = 0; i < objects.size(); ++i) {
    if (objects[i] == object) return kPolicies[i];
  }
  TORCH_CHECK(false, "[", where, "] policy: expected a CheckpointPolicy, got ",
              Py_TYPE(object)->tp_name, ". Pass CheckpointPolicy.SAVE, RECOMPUTE or OFFLOAD.");
}

PyObject* object_of(Policy policy) {
  for (size_t i = 0; i < objects.size(); ++i) {
    if (kPolicies[i] == policy) return objects[i];
  }
  return Py_None;
}

}  // namespace remat::python
