// SPDX-License-Identifier: BSD-3-Clause

// An OffloadStore as saved-tensor hooks.
#pragma once

#include <memory>

#include <remat/tape/offload_store.h>
#include <remat/tape/saved_tensors_hooks.h>

namespace remat {

/// Hooks that put into `store` and get from it; null for null.
std::shared_ptr<const SavedTensorsHooks> as_hooks(const std::shared_ptr<OffloadStore>& store);

/// The same for the arguments of a region: leaves that require gradients stay.
std::shared_ptr<const SavedTensorsHooks> as_input_hooks(const std::shared_ptr<OffloadStore>& store);

}  // namespace remat
