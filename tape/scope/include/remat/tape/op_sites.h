// SPDX-License-Identifier: BSD-3-Clause

// Where the ops of a region come from: for the error of a replay that differs, if its user debugs.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <remat/tape/export.h>
#include <remat/tape/replay_comparison.h>

namespace remat {

/// The sites of one forward's ops, in the order of its OpLog. Filled by the forward's thread, then
/// read by any.
class REMAT_API OpSites {
 public:
  explicit OpSites(OpSite site) : site_(std::move(site)) {}

  /// The forward has logged an op.
  void add() { sites_.push_back(now()); }

  /// The site of the op that is about to run. Asks the user with every scope hidden.
  std::string now() const;

  /// The site of the op with this number; empty if there is none.
  std::string of(size_t number) const { return number < sites_.size() ? sites_[number] : ""; }

  /// "aten::sin(...)  model.py:12 in forward"
  static std::string line(const std::string& op, const std::string& site);

  /// "  0 first\n  1 second\n"
  static std::string numbered(const std::vector<std::string>& lines);

 private:
  OpSite site_;
  std::vector<std::string> sites_;
};

}  // namespace remat
