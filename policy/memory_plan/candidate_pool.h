// SPDX-License-Identifier: BSD-3-Clause

// A Pareto set of plans: no plan in it is beaten in both peak and time.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace remat::detail {

struct CutCandidate {
  int32_t cuts = 0;            ///< Number of its positions and groups in the search
  std::vector<int32_t> kept;   ///< Values, ascending
  std::vector<int32_t> moved;  ///< Those of `kept` that are offloaded
  double more_us = 0;          ///< Time of recomputation and of waits for copies
};

class CandidatePool {
 public:
  /// True if a plan with these numbers would enter. An equal plan would not: the first found stays.
  bool admits(int64_t peak_bytes, double more_us) const;
  /// Adds a candidate and removes those that it beats.
  void add(int64_t peak_bytes, CutCandidate candidate);

  /// All candidates by peak; peaks rise while times fall.
  const std::map<int64_t, CutCandidate>& all() const { return by_peak_; }
  /// The fastest candidate within a budget; end() of all() if there is none.
  std::map<int64_t, CutCandidate>::const_iterator best(int64_t budget_bytes) const;

 private:
  std::map<int64_t, CutCandidate> by_peak_;
};

}  // namespace remat::detail
