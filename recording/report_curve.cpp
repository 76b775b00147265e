// SPDX-License-Identifier: BSD-3-Clause

#include "report_curve.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace remat::detail {
namespace {

/// Chooses the indices of the minimum and the maximum of each stretch. Indices come in order.
class Extremes {
 public:
  Extremes(const std::vector<int64_t>& totals, std::vector<size_t>& chosen)
      : totals_(totals), chosen_(chosen) {}

  void add(size_t place, size_t stretch) {
    if (stretch != stretch_) {
      finish();
      stretch_ = stretch;
      least_ = most_ = place;
    }
    if (totals_[place] < totals_[least_]) least_ = place;
    if (totals_[place] > totals_[most_]) most_ = place;
  }

  void finish() {
    if (stretch_ == kNoStretch) return;
    chosen_.push_back(least_);
    chosen_.push_back(most_);
  }

 private:
  static constexpr size_t kNoStretch = std::numeric_limits<size_t>::max();

  const std::vector<int64_t>& totals_;
  std::vector<size_t>& chosen_;
  size_t stretch_ = kNoStretch;
  size_t least_ = 0;
  size_t most_ = 0;
};

/// Stretches of time serve a view of the whole, runs of events a close view.
void add_extremes(const std::vector<AliveByKind>& alive, size_t stretches,
                  std::vector<size_t>& chosen) {
  std::vector<int64_t> totals;
  totals.reserve(alive.size());
  for (const AliveByKind& moment : alive) totals.push_back(moment.total());
  const auto begin = static_cast<double>(alive.front().time_ns);
  const double length = std::max(1.0, static_cast<double>(alive.back().time_ns) - begin);
  Extremes by_time(totals, chosen);
  for (size_t i = 0; i < alive.size(); ++i) {
    const double share = (static_cast<double>(alive[i].time_ns) - begin) / length;
    by_time.add(i, static_cast<size_t>(share * static_cast<double>(stretches)));
  }
  by_time.finish();
  Extremes by_count(totals, chosen);
  const size_t run = std::max<size_t>(1, (alive.size() + stretches - 1) / stretches);
  for (size_t i = 0; i < alive.size(); ++i) by_count.add(i, i / run);
  by_count.finish();
}

}  // namespace

size_t last_until(const std::vector<AliveByKind>& alive, TimeNs time_ns) {
  const auto after = std::upper_bound(
      alive.begin(), alive.end(), time_ns,
      [](TimeNs time, const AliveByKind& moment) { return time < moment.time_ns; });
  return after == alive.begin() ? MemoryBlock::kNone
                                : static_cast<size_t>(after - alive.begin()) - 1;
}

std::vector<size_t> shown_moments(const std::vector<AliveByKind>& alive,
                                  const std::vector<TimeNs>& marks, size_t most) {
  std::vector<size_t> chosen;
  if (alive.size() <= most) {
    chosen.resize(alive.size());
    std::iota(chosen.begin(), chosen.end(), size_t{0});
    return chosen;
  }
  add_extremes(alive, std::max<size_t>(1, most / 4), chosen);
  for (const TimeNs mark : marks) {
    if (const size_t place = last_until(alive, mark); place != MemoryBlock::kNone)
      chosen.push_back(place);
  }
  chosen.push_back(0);
  chosen.push_back(alive.size() - 1);
  std::sort(chosen.begin(), chosen.end());
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  return chosen;
}

}  // namespace remat::detail
