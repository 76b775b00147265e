// SPDX-License-Identifier: BSD-3-Clause

// How a thread of remat waits for another one.
#pragma once

#include <c10/util/FunctionRef.h>

#include <remat/tape/export.h>

namespace remat {

/// Runs `wait`, which blocks until another thread has finished a replay.
using BlockingWait = void (*)(c10::function_ref<void()> wait);

/// Installs the runner of every blocking wait. A host with a lock of its own around calls into
/// remat (an interpreter lock) lets go of it while `wait` runs, else two threads on one graph wait
/// for each other. Null installs the default: just wait. Call it before the first backward.
REMAT_API void set_blocking_wait(BlockingWait runner);

/// Waits through the installed runner.
REMAT_API void blocking_wait(c10::function_ref<void()> wait);

}  // namespace remat
