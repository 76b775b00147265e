// SPDX-License-Identifier: BSD-3-Clause

// What autograd saves for remat itself.
#pragma once

namespace remat {

/// True while scopes of this thread are hidden (OuterScopes, ScopesAround): what is saved then no
/// op and no custom function saves, but a region inside, or a SAVE call for its user.
bool saves_own();

/// True while a region keeps a result of a SAVE call, for its replays, on this thread.
bool packs_call_result();

}  // namespace remat
