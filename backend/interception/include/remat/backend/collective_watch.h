// SPDX-License-Identifier: BSD-3-Clause

// Whoever wants to know of the collectives of regions before they are issued: a debug mode.
#pragma once

#include <remat/tape/export.h>
#include <remat/tape/op_call.h>

namespace remat {

/// Called before a collective, a send or a receive of a region runs, in the forward or in a replay,
/// on the thread that runs it and without any region active; of a wait for a functional collective
/// before waiting too, also in a replay that leaves it out. What it throws is thrown in place of
/// the op.
using CollectiveWatch = void (*)(const OpCall& call);

/// Null: nobody wants to know, as in the beginning. Any thread.
REMAT_API void set_collective_watch(CollectiveWatch watch);

/// The op of `call`, for which is_communication() holds, is about to run.
void tell_collective_watch(const OpCall& call);

}  // namespace remat
