// SPDX-License-Identifier: BSD-3-Clause

// Whether a function runs for the first time.
#pragma once

#include <remat/tape/export.h>

namespace remat {

/// True while this thread runs a region's function again, before backward. A function that asks may
/// leave out side effects then; so from the question on, forward and replay are compared by their
/// saved tensors only, no longer op by op.
REMAT_API bool is_recomputing();

}  // namespace remat
