// SPDX-License-Identifier: BSD-3-Clause

// A Pareto set kept in a map.
#include "candidate_pool.h"

namespace remat::detail {

bool CandidatePool::admits(int64_t peak_bytes, double more_us) const {
  const auto within = best(peak_bytes);
  return within == by_peak_.end() || more_us < within->second.more_us;
}

void CandidatePool::add(int64_t peak_bytes, CutCandidate candidate) {
  auto next = by_peak_.lower_bound(peak_bytes);
  while (next != by_peak_.end() && next->second.more_us >= candidate.more_us)
    next = by_peak_.erase(next);
  by_peak_.emplace(peak_bytes, std::move(candidate));
}

std::map<int64_t, CutCandidate>::const_iterator CandidatePool::best(int64_t budget_bytes) const {
  auto above = by_peak_.upper_bound(budget_bytes);
  return above == by_peak_.begin() ? by_peak_.end() : --above;
}

}  // namespace remat::detail
