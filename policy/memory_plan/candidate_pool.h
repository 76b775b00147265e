// SPDX-License-Identifier: BSD-3-Clause

// The plans that no other beats in peak and time at once.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace remat::detail {

struct CutCandidate {
  int32_t cuts = 0;            ///< Which positions and groups, by a number of the searcher's
  std::vector<int32_t> kept;   ///< Values, ascending
  std::vector<int32_t> moved;  ///< Of these, those that OFFLOAD moves
  double more_us = 0;          ///< What runs again, and waits for copies
};

class CandidatePool {
 public:
  /// Would a plan of these numbers enter? Equal ones do not: the first found stays.
  bool admits(int64_t peak_bytes, double more_us) const;
  /// What it beats goes.
  void add(int64_t peak_bytes, CutCandidate candidate);

  /// By peak, which rises while times fall.
  const std::map<int64_t, CutCandidate>& all() const { return by_peak_; }
  /// The fastest within a budget; end() of all(): none.
  std::map<int64_t, CutCandidate>::const_iterator best(int64_t budget_bytes) const;

 private:
  std::map<int64_t, CutCandidate> by_peak_;
};

}  // namespace remat::detail
