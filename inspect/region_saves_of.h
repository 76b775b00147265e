// SPDX-License-Identifier: BSD-3-Clause

// Access to what a region holds, for the reports in this folder.
#pragma once

#include <unordered_set>

#include <remat/engine/region.h>
#include <remat/inspect/region_saves.h>

namespace remat {

/// True if the region's forward has ended or runs on this thread; else another thread is filling
/// it.
bool may_be_looked_into(const Region& region);

/// The tensors that `region` holds in storages not yet in `billed`. Adds these storages to
/// `billed`.
RegionSaves region_saves_of(const Region& region, std::unordered_set<const void*>& billed);

}  // namespace remat
