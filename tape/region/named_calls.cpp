// SPDX-License-Identifier: BSD-3-Clause

// What named calls of a thread share.
#include <remat/tape/named_calls.h>

#include <remat/tape/scope.h>

namespace remat {

std::atomic<bool> placeholders_work{true};

NamedCalls* innermost_named_calls() {
  Scope* const scope = Scope::current() ? Scope::innermost_with_calls() : nullptr;
  return scope ? scope->named_calls() : nullptr;
}

}  // namespace remat
