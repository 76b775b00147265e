// SPDX-License-Identifier: BSD-3-Clause

// Sets the counter of torch's RemovableHandle back and forward.
#include "hook_handle_ids.h"

#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>

#include <algorithm>

#include "owned_object.h"

namespace remat::python {
namespace {

thread_local uint64_t in_forward_only = 0;  // SAVE calls that made handles

PyObject* handle_class() {
  static PyObject* found = nullptr;  // under the GIL
  if (found) return found;
  THPObjectPtr module(PyImport_ImportModule("torch.utils.hooks"));
  if (module) found = PyObject_GetAttrString(module, "RemovableHandle");
  if (!found) throw python_error();
  return found;
}

PyObject* next_id() {
  static PyObject* const name = PyUnicode_InternFromString("next_id");
  return name;
}

void set_next(int64_t id) {
  THPObjectPtr number(PyLong_FromLongLong(id));
  if (!number || PyObject_SetAttr(handle_class(), next_id(), number) < 0) throw python_error();
}

}  // namespace

HookHandleIds::HookHandleIds() : first_(next()), in_forward_only_(in_forward_only) {}

void HookHandleIds::finish_forward() {
  needed_ = next() != first_ && in_forward_only == in_forward_only_;
}

int64_t HookHandleIds::next() {
  THPObjectPtr number(PyObject_GetAttr(handle_class(), next_id()));
  const int64_t id = number ? PyLong_AsLongLong(number) : -1;
  if (id < 0 && PyErr_Occurred()) throw python_error();
  return id;
}

void HookHandleIds::note_in_forward_only() {
  ++in_forward_only;
}

HookHandleIdsAgain::HookHandleIdsAgain(const HookHandleIds& forward) {
  if (!forward.needed_) return;
  present_ = HookHandleIds::next();
  set_next(forward.first_);
}

HookHandleIdsAgain::~HookHandleIdsAgain() {
  if (present_ < 0) return;
  const ErrorAside error;
  try {
    set_next(std::max(present_, HookHandleIds::next()));
  } catch (python_error&) {
    PyErr_WriteUnraisable(handle_class());
  }
}

}  // namespace remat::python
