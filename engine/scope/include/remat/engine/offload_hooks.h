// SPDX-License-Identifier: BSD-3-Clause

// Saved-tensor hooks over an OffloadStore.
#pragma once

#include <memory>

#include <remat/engine/offload_store.h>
#include <remat/engine/saved_tensors_hooks.h>

namespace remat {

/// Hooks that put tensors into `store` and get them back; null if `store` is null.
std::shared_ptr<const SavedTensorsHooks> as_hooks(const std::shared_ptr<OffloadStore>& store);

/// Hooks for a region's arguments: like as_hooks(), but leaves that require gradients stay in
/// place.
std::shared_ptr<const SavedTensorsHooks> as_input_hooks(const std::shared_ptr<OffloadStore>& store);

}  // namespace remat
