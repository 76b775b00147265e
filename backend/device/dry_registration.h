// SPDX-License-Identifier: BSD-3-Clause

// Registration of what makes dry tensors.
#pragma once

namespace remat {

/// Registers the kernels and the allocator of DryFactories for PrivateUse1, for good. Call once.
void register_dry_factories();

}  // namespace remat
