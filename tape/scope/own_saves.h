// SPDX-License-Identifier: BSD-3-Clause

// Detecting tensors that autograd saves on behalf of remat.
#pragma once

namespace remat {

/// True while scopes of this thread are hidden (OuterScopes, ScopesAround): what is saved then
/// comes from a nested region, or from a SAVE call for its user, not from an op or custom function.
bool saves_own();

/// True while this thread keeps a SAVE call's result for replays of its region.
bool packs_call_result();

}  // namespace remat
