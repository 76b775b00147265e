// SPDX-License-Identifier: BSD-3-Clause

// Looking into regions, for the reports of this folder.
#pragma once

#include <unordered_set>

#include <remat/inspect/region_saves.h>
#include <remat/tape/region.h>

namespace remat {

/// True if its forward has ended or runs on this thread: else another thread is filling it.
bool may_be_looked_into(const Region& region);

/// What `region` holds of storages that are not in `billed`, to which they are added.
RegionSaves region_saves_of(const Region& region, std::unordered_set<const void*>& billed);

}  // namespace remat
