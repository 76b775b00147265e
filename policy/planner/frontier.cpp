// SPDX-License-Identifier: BSD-3-Clause

// The frontier: lookups and CSV.
#include <algorithm>
#include <cstdio>

#include <remat/planner/planner.h>

namespace remat {

Frontier::Frontier(std::vector<FrontierPoint> points, double ideal_time_us, bool exact)
    : points_(std::move(points)), ideal_time_us_(ideal_time_us), exact_(exact) {}

int64_t Frontier::least_budget_bytes() const {
  return points_.empty() ? 0 : points_.front().budget_bytes;
}

int64_t Frontier::no_checkpoint_peak_bytes() const {
  return points_.empty() ? 0 : points_.back().budget_bytes;
}

const FrontierPoint* Frontier::at(int64_t budget_bytes) const {
  const auto after = std::partition_point(
      points_.begin(), points_.end(),
      [&](const FrontierPoint& point) { return point.budget_bytes <= budget_bytes; });
  return after == points_.begin() ? nullptr : &*(after - 1);
}

std::string Frontier::to_csv() const {
  std::string csv = "budget_bytes,total_time_us,overhead\n";
  char line[96];
  for (const FrontierPoint& point : points_) {
    std::snprintf(line, sizeof(line), "%lld,%.6f,%.9f\n",
                  static_cast<long long>(point.budget_bytes), point.total_time_us, point.overhead);
    csv += line;
  }
  return csv;
}

}  // namespace remat
