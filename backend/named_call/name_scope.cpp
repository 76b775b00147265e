// SPDX-License-Identifier: BSD-3-Clause

// The thread's stack of name prefixes.
#include <remat/backend/name_scope.h>

#include <c10/util/Exception.h>

#include <utility>

#include <remat/engine/scope.h>

namespace remat {
namespace {

thread_local NameScope* innermost = nullptr;

}  // namespace

NameScope::NameScope(std::string prefix)
    : prefix_(std::move(prefix)), outer_(innermost), region_(Scope::innermost_with_calls()) {
  TORCH_CHECK_VALUE(!prefix_.empty(),
                    "[NameScope] prefix: expected a prefix, must be non-empty, got an empty one.");
  innermost = this;
}

NameScope::~NameScope() {
  innermost = outer_;
}

bool NameScope::is_open() {
  return innermost != nullptr;
}

// Only scopes opened in the region's function count, because a replay opens no others.
std::string NameScope::full_name(std::string_view name) {
  std::string text(name);
  const Scope* const region = Scope::innermost_with_calls();
  for (const NameScope* scope = innermost; scope && scope->region_ == region;
       scope = scope->outer_) {
    text = scope->prefix_ + "/" + text;
  }
  return text;
}

}  // namespace remat
