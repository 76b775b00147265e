// SPDX-License-Identifier: BSD-3-Clause

// Source locations of a region's ops, for the error of a diverging replay in debug mode.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <remat/engine/determinism.h>
#include <remat/engine/export.h>

namespace remat {

/// The sites of one forward's ops, in the order of its OpLog. The forward's thread fills it, then
/// any thread may read it.
class REMAT_API OpSites {
 public:
  explicit OpSites(OpSite site) : site_(std::move(site)) {}

  /// Records the site of an op that the forward has logged.
  void add() { sites_.push_back(now()); }

  /// The site of the op that is about to run. Calls the user's function with all scopes hidden.
  std::string now() const;

  /// The site of op `number`; empty if there is none.
  std::string of(size_t number) const { return number < sites_.size() ? sites_[number] : ""; }

  /// Joins both to a line such as "aten::sin(...)  model.py:12 in forward".
  static std::string line(const std::string& op, const std::string& site);

  /// Numbers the lines: {"a", "b"} becomes "  0 a\n  1 b\n".
  static std::string numbered(const std::vector<std::string>& lines);

 private:
  OpSite site_;
  std::vector<std::string> sites_;
};

}  // namespace remat
