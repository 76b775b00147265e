// SPDX-License-Identifier: BSD-3-Clause

// The options of checkpoint() as Python passes them.
#pragma once

#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/object_ptr.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <remat/backend/checkpoint_options.h>

#include "argument_tree.h"
#include "function_wrapper.h"
#include "owned_object.h"

namespace remat::python {

/// The options in C++ form, and data that only Python needs.
class Settings final : public WrapperState {
 public:
  int traverse(visitproc visit, void* argument) const override;
  PyObject* reduce(PyObject* function) const override;
  PyObject* show() const override;

  /// `keywords`, or an empty dict.
  pybind11::dict given() const;

  CheckpointOptions options;
  OutputRule output_rule = OutputRule::kTensorsOnly;

  /// The keywords of checkpoint() as a dict, or null. Pickle makes equal Settings from them.
  SharedObject keywords;

  /// The Python objects in `options`, for the garbage collector.
  std::vector<SharedObject> objects;

  /// The function of the last region with these settings that was reported to the agreement of
  /// ranks, and the number of that agreement. Use under the GIL.
  mutable std::pair<const PyObject*, uint64_t> reported{nullptr, 0};
};

/// Converts any iterable but a string to a tuple. Else throws TypeError that names `name`.
THPObjectPtr as_tuple(const std::string& name, PyObject* value);

/// Calls `visit("name[i]", item)` for each item of an iterable. Throws TypeError for other values.
template <class Visit>
void for_each_item(const std::string& name, PyObject* value, Visit&& visit) {
  THPObjectPtr items = as_tuple(name, value);
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items.get()); ++i)
    visit(name + "[" + std::to_string(i) + "]", PyTuple_GET_ITEM(items.get(), i));
}

/// Applies one keyword of checkpoint(). Throws TypeError or ValueError that names the keyword.
void set_option(Settings& settings, std::string_view name, PyObject* value);

/// Sets the option cuts: None, or an object with the attributes of remat.Cuts. Throws TypeError or
/// ValueError that names the wrong attribute.
void set_cuts(Settings& settings, PyObject* value);

/// Sets the option plan: None, or a MemoryPlan, which implies its cuts and replay="tape".
void set_plan(Settings& settings, PyObject* value);

/// Sets the internal option _cuts: the handle that auto_checkpoint() and profile() pass on.
void set_planned_cuts(Settings& settings, PyObject* value);

}  // namespace remat::python
