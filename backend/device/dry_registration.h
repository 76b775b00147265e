// SPDX-License-Identifier: BSD-3-Clause

// Registration of the factories of dry tensors.
#pragma once

namespace remat {

/// Permanently registers the kernels and the allocator of DryFactories for PrivateUse1. Call it
/// once.
void register_dry_factories();

}  // namespace remat
