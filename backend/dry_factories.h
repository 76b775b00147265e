// SPDX-License-Identifier: BSD-3-Clause

// Kernels that make dry tensors from nothing.
#pragma once

namespace remat {

/// Registers them for PrivateUse1, for good. Call once.
void register_dry_factories();

}  // namespace remat
