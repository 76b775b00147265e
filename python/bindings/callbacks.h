// SPDX-License-Identifier: BSD-3-Clause

// Wraps Python functions and objects as remat's callbacks, which take the GIL themselves.
#pragma once

#include <memory>

#include <remat/engine/offload_store.h>
#include <remat/engine/saved_tensors_pair.h>
#include <remat/engine/state_hook.h>

#include "owned_object.h"

namespace remat::python {

/// Makes hooks that throw the functions' errors as python_error. `capture_context` may be null.
SavedTensorsHooks make_saved_tensors_hooks(SharedObject pack, SharedObject unpack,
                                           SharedObject capture_context);

/// Returns (pack, unpack, capture_context) of a saved_tensors_hooks as a new reference; null,
/// without an error set, for other objects.
PyObject* parts_of_hooks(PyObject* object);

/// `hook` is an object with snapshot() and restore(state).
std::shared_ptr<StateHook> make_state_hook(SharedObject hook);

/// `store` is an object whose put(tensor) returns an object with get(). If put() returns an object
/// without get(), throws ValueError, because torch's operators would swallow a TypeError. Throws
/// TypeError if get() returns no tensor.
std::shared_ptr<OffloadStore> make_offload_store(SharedObject store);

}  // namespace remat::python
