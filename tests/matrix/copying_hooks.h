// SPDX-License-Identifier: BSD-3-Clause

// Saved-tensor hooks that keep a copy, as those that offload do.
#pragma once

#include <remat/remat.h>

#include <cstdint>

namespace remat::matrix {

SavedTensorsHooks copying_hooks();

/// Counts in `packed`, which must outlive the hooks, on one thread at a time.
SavedTensorsHooks counting_hooks(int64_t& packed);

}  // namespace remat::matrix
