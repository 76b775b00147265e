// SPDX-License-Identifier: BSD-3-Clause

// How a thread that runs remat waits for another thread or a device.
#pragma once

#include <c10/util/FunctionRef.h>

#include <remat/engine/export.h>

namespace remat {

/// Runs `wait`, which blocks until another thread or a device has done its part.
using BlockingWait = void (*)(c10::function_ref<void()> wait);

/// Installs the function that runs every blocking wait. A program that calls into remat under a
/// lock of its own (an interpreter lock) must release that lock while `wait` runs, or two threads
/// on one graph deadlock. Null installs the default, which only waits. Call it before the first
/// backward.
REMAT_API void set_blocking_wait(BlockingWait runner);

/// Waits through the installed function.
REMAT_API void blocking_wait(c10::function_ref<void()> wait);

}  // namespace remat
