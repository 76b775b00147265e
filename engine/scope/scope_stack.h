// SPDX-License-Identifier: BSD-3-Clause

// The innermost scope of this thread.
#pragma once

namespace remat {

class Scope;

// Accessed a few times per op, so access must not need a function call.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local Scope* current_scope;

}  // namespace remat
