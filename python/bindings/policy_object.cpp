// SPDX-License-Identifier: BSD-3-Clause

// Converts between Policy and the members of the Python enum.
#include "policy_object.h"

#include <c10/util/Exception.h>
#include <torch/csrc/utils/object_ptr.h>
#include <torch/csrc/utils/pythoncapi_compat.h>

#include <array>
#include <cstring>

#include "errors.h"

namespace remat::python {
namespace {

constexpr std::array kPolicies{Policy::kSave, Policy::kRecompute, Policy::kOffload};
std::array<PyObject*, kPolicies.size()> objects{};  // in the order of kPolicies

/// If `object` is a member of torch's enum CheckpointPolicy, the name of our member with that
/// meaning; else null.
const char* meant_by(PyObject* object) {
  if (std::strcmp(Py_TYPE(object)->tp_name, "CheckpointPolicy") != 0) return nullptr;
  THPObjectPtr name(PyObject_GetAttrString(object, "name"));
  const char* const text = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : nullptr;
  PyErr_Clear();
  if (!text) return nullptr;
  return std::strstr(text, "SAVE") ? "SAVE" : "RECOMPUTE";
}

}  // namespace

void set_policy_objects(PyObject* const* members) {
  for (size_t i = 0; i < objects.size(); ++i) objects[i] = Py_NewRef(members[i]);
}

Policy policy_of(const char* where, PyObject* object) {
  for (size_t i = 0; i < objects.size(); ++i) {
    if (objects[i] == object) return kPolicies[i];
  }
  const char* const meant = meant_by(object);
  TORCH_CHECK(!meant, "[", where, "] policy: expected a remat_meta.CheckpointPolicy, got ",
              type_of(object), ". Pass remat_meta.CheckpointPolicy.", meant ? meant : "", ".");
  TORCH_CHECK(false, "[", where, "] policy: expected a CheckpointPolicy, got ", type_of(object),
              ". Pass CheckpointPolicy.SAVE, RECOMPUTE or OFFLOAD.");
}

PyObject* object_of(Policy policy) {
  for (size_t i = 0; i < objects.size(); ++i) {
    if (kPolicies[i] == policy) return objects[i];
  }
  return Py_None;
}

}  // namespace remat::python
