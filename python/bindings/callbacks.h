// SPDX-License-Identifier: BSD-3-Clause

// Python functions and objects as remat's callbacks. They take the GIL themselves.
#pragma once

#include <memory>

#include <remat/tape/offload_store.h>
#include <remat/tape/saved_tensors_pair.h>
#include <remat/tape/state_hook.h>

#include "owned_object.h"

namespace remat::python {

/// `capture_context` may be null. What they raise passes as python_error.
SavedTensorsHooks make_saved_tensors_hooks(SharedObject pack, SharedObject unpack,
                                           SharedObject capture_context);

/// `hook`: an object with snapshot() and restore(state).
std::shared_ptr<StateHook> make_state_hook(SharedObject hook);

/// `store`: an object with put(tensor), which returns one with get(). put() throws ValueError for
/// what has none (torch's operators swallow a TypeError), get() TypeError for what is no tensor.
std::shared_ptr<OffloadStore> make_offload_store(SharedObject store);

}  // namespace remat::python
