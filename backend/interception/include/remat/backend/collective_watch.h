// SPDX-License-Identifier: BSD-3-Clause

// A callback before collectives in regions are issued, for a debug mode.
#pragma once

#include <remat/tape/export.h>
#include <remat/tape/op_call.h>

namespace remat {

/// Called before a collective, a send or a receive of a region runs, in the forward or in a replay,
/// on the thread that runs it and with all scopes hidden. Also called before a wait for a
/// functional collective, even in a replay that leaves the wait out. What it throws is thrown in
/// place of the op.
using CollectiveWatch = void (*)(const OpCall& call);

/// Sets the watch; null, the default, for none. Usable from any thread.
REMAT_API void set_collective_watch(CollectiveWatch watch);

/// Call it before the op of `call`, for which is_communication() is true, runs.
void tell_collective_watch(const OpCall& call);

}  // namespace remat
