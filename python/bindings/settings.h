// SPDX-License-Identifier: BSD-3-Clause

// The options of a Python caller.
#pragma once

#include <torch/csrc/python_headers.h>
#include <torch/csrc/utils/object_ptr.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include <remat/backend/checkpoint_options.h>

#include "argument_tree.h"
#include "function_wrapper.h"
#include "owned_object.h"

namespace remat::python {

/// Options as C++ has them, and what is to be known beside them.
class Settings final : public WrapperState {
 public:
  int traverse(visitproc visit, void* argument) const override;
  PyObject* reduce(PyObject* function) const override;
  PyObject* show() const override;

  CheckpointOptions options;
  OutputRule output_rule = OutputRule::kTensorsOnly;

  /// The keywords that were given: a dict, or null for none. Made into the same Settings again by
  /// pickle.
  SharedObject keywords;

  /// The Python objects inside of `options`, for the garbage collector.
  std::vector<SharedObject> objects;

  /// The function of the last region with these settings of which the agreement of ranks was told,
  /// and which agreement that was. Under the GIL.
  struct Told {
    const PyObject* function = nullptr;
    uint64_t agreement = 0;
    bool operator==(const Told&) const = default;
  };
  mutable Told told;
};

/// The items of any iterable, kept by the returned tuple. Throws TypeError, naming it.
THPObjectPtr as_tuple(const char* name, PyObject* value);

/// Takes one keyword of checkpoint(). Throws TypeError or ValueError, naming it.
void set_option(Settings& settings, std::string_view name, PyObject* value);

/// `pack` and `unpack` (and `capture_context`, if not None) as hooks. The hooks share `objects`.
SavedTensorsHooks make_hooks(PyObject* value, std::vector<SharedObject>& objects);

}  // namespace remat::python
