// SPDX-License-Identifier: BSD-3-Clause

// The query whether a region's function runs for the first time or in a replay.
#pragma once

#include <remat/engine/export.h>

namespace remat {

/// True while this thread runs a region's function again, before backward. A function that calls
/// this may skip side effects in the replay, so from this call on forward and replay are compared
/// by their saved tensors only, no longer op by op.
REMAT_API bool is_recomputing();

}  // namespace remat
