// SPDX-License-Identifier: BSD-3-Clause

// Functions that run once, when a process begins to use remat.
#pragma once

#include <remat/engine/export.h>

namespace remat::detail {

/// Notes a function for first_use(). Called by static initialisers, so that loading the library
/// runs none of these functions. Call it before first_use(), on one thread.
REMAT_API void at_first_use(void (*function)());

/// Runs the noted functions, once in the process. The first region, the first user hooks and
/// register_device() call it. Usable from any thread.
REMAT_API void first_use();

}  // namespace remat::detail
