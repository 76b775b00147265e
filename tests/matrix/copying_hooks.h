// SPDX-License-Identifier: BSD-3-Clause

// Saved-tensor hooks that keep copies, as offloading hooks do.
#pragma once

#include <remat/remat.h>

#include <cstdint>

namespace remat::matrix {

SavedTensorsHooks copying_hooks();

/// Returns hooks that count in `packed`, which must outlive them. For one thread at a time.
SavedTensorsHooks counting_hooks(int64_t& packed);

}  // namespace remat::matrix
