// SPDX-License-Identifier: BSD-3-Clause

// The environment variables REMAT_POLICY and REMAT_REPLAY, the defaults for regions whose options
// do not choose.
#pragma once

#include <memory>

#include <remat/engine/export.h>
#include <remat/engine/region_policy.h>

namespace remat {

/// The policy that REMAT_POLICY names, by a preset's name or the path of a JSON file; null if
/// unset. Read once per process. Throws ValueError, on each call, if the value is neither.
REMAT_API std::shared_ptr<const RegionPolicy> policy_of_environment();

/// True if REMAT_REPLAY=auto, so that regions with replay = kFunction are replayed as with kAuto.
/// Throws ValueError, on each call, if the value is neither "auto" nor "function".
bool environment_wants_tapes();

}  // namespace remat
