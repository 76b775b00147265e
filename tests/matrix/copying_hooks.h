// SPDX-License-Identifier: BSD-3-Clause

// Saved-tensor hooks that keep copies, as offloading hooks do.
#pragma once

#include <remat/remat.h>

#include <cstdint>

namespace remat::matrix {

SavedTensorsHooks copying_hooks();

/// Returns copying_hooks() that also add 1 to `packed` for each packed tensor. `packed` must
/// outlive the hooks. For one thread at a time.
SavedTensorsHooks counting_hooks(int64_t& packed);

}  // namespace remat::matrix
