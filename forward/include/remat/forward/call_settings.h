// SPDX-License-Identifier: BSD-3-Clause

// Options of a region for its named calls.
#pragma once

#include <memory>

#include <remat/engine/offload_store.h>
#include <remat/engine/region_entry.h>
#include <remat/engine/saved_tensors_hooks.h>
#include <remat/policy/policy.h>

namespace remat {

struct CallSettings {
  ImplicitKeep implicit_keep = ImplicitKeep::kKeep;
  std::shared_ptr<const SavedTensorsHooks> hooks;  ///< Hooks of the region's options, or null.
  std::shared_ptr<OffloadStore> offload_store;     ///< May be null.
  bool offload_inputs = false;                     ///< The store keeps the region's arguments, too.
  RegionEntry::Options state;  ///< State to restore in replays and skipped calls.
};

}  // namespace remat
