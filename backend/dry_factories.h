// SPDX-License-Identifier: BSD-3-Clause

// What makes dry tensors and storages from nothing.
#pragma once

namespace remat {

/// Registers kernels and an allocator for PrivateUse1, for good. Call once.
void register_dry_factories();

}  // namespace remat
