// SPDX-License-Identifier: BSD-3-Clause

// The options of a Python caller.
#pragma once

#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/object_ptr.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <remat/backend/checkpoint_options.h>

#include "argument_tree.h"
#include "function_wrapper.h"
#include "owned_object.h"

namespace remat::python {

/// The options in C++ form, and what Python needs besides them.
class Settings final : public WrapperState {
 public:
  int traverse(visitproc visit, void* argument) const override;
  PyObject* reduce(PyObject* function) const override;
  PyObject* show() const override;

  CheckpointOptions options;
  OutputRule output_rule = OutputRule::kTensorsOnly;

  /// The given keywords as a dict, or null for none. Pickle makes equal Settings from them.
  SharedObject keywords;

  /// The Python objects in `options`, for the garbage collector.
  std::vector<SharedObject> objects;

  /// The function of the last region with these settings that was reported to the agreement of
  /// ranks, and the number of that agreement. Use under the GIL.
  mutable std::pair<const PyObject*, uint64_t> reported{nullptr, 0};
};

/// Converts any iterable to a tuple, which holds the items. Throws TypeError that names `name`.
THPObjectPtr as_tuple(const char* name, PyObject* value);

/// Applies one keyword of checkpoint(). Throws TypeError or ValueError that names it.
void set_option(Settings& settings, std::string_view name, PyObject* value);

/// Makes hooks of `pack` and `unpack` (and `capture_context`, if not None). The hooks share
/// `objects`.
SavedTensorsHooks make_hooks(PyObject* value, std::vector<SharedObject>& objects);

}  // namespace remat::python
