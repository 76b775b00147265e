// SPDX-License-Identifier: BSD-3-Clause

// REMAT_POLICY and REMAT_REPLAY: for regions that do not choose for themselves.
#pragma once

#include <memory>

#include <remat/tape/export.h>
#include <remat/tape/region_policy.h>

namespace remat {

/// Of a preset's name or the path of a JSON file, read once per process; null if it is not set.
/// Throws ValueError, each time, if it is neither.
REMAT_API std::shared_ptr<const RegionPolicy> policy_of_environment();

/// True if REMAT_REPLAY=auto: regions with replay = kFunction are replayed as with kAuto. Throws
/// ValueError, each time, if it is something else than "auto" or "function".
bool environment_wants_tapes();

}  // namespace remat
