// SPDX-License-Identifier: BSD-3-Clause

// The innermost scope of this thread.
#pragma once

namespace remat {

class Scope;

// A few accesses per op: no call to find it.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local Scope* current_scope;

}  // namespace remat
