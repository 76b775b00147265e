// SPDX-License-Identifier: BSD-3-Clause

// Prefixes for the names of named calls, so that the calls of code that runs twice have different
// names each time.
#pragma once

#include <string>
#include <string_view>

#include <remat/engine/export.h>

namespace remat {

class Scope;

/// While alive, puts `prefix` and a slash before the names of named calls on this thread; scopes
/// nest. A NameScope made in a region's function applies to that region's calls only. Must be
/// destroyed on the thread that made it, innermost first. Throws ValueError if the prefix is empty.
class REMAT_API NameScope {
 public:
  explicit NameScope(std::string prefix);
  NameScope(const NameScope&) = delete;
  NameScope& operator=(const NameScope&) = delete;
  ~NameScope();

  /// True if this thread has an open NameScope.
  static bool is_open();

  /// `name` with the prefixes of the NameScopes opened in the current region, outermost first.
  static std::string full_name(std::string_view name);

 private:
  std::string prefix_;
  NameScope* outer_;
  const Scope* region_;
};

}  // namespace remat
