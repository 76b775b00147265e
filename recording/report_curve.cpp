// SPDX-License-Identifier: BSD-3-Clause

#include "report_curve.h"

#include <algorithm>
#include <numeric>

namespace remat::detail {
namespace {

/// Chooses the indices of the first minimum and the first maximum of each stretch: a run of indices
/// with one value of stretch_of().
template <class StretchOf>
void add_extremes_of(const std::vector<int64_t>& totals, StretchOf&& stretch_of,
                     std::vector<size_t>& chosen) {
  for (size_t begin = 0; begin < totals.size();) {
    size_t least = begin;
    size_t most = begin;
    size_t place = begin;
    for (; place < totals.size() && stretch_of(place) == stretch_of(begin); ++place) {
      if (totals[place] < totals[least]) least = place;
      if (totals[place] > totals[most]) most = place;
    }
    chosen.push_back(least);
    chosen.push_back(most);
    begin = place;
  }
}

/// Stretches of time serve a view of the whole, runs of events a close view.
void add_extremes(const std::vector<AliveByKind>& alive, size_t stretches,
                  std::vector<size_t>& chosen) {
  std::vector<int64_t> totals;
  totals.reserve(alive.size());
  for (const AliveByKind& moment : alive) totals.push_back(moment.total());
  const auto begin = static_cast<double>(alive.front().time_ns);
  const double length = std::max(1.0, static_cast<double>(alive.back().time_ns) - begin);
  const auto stretch_of_time = [&](size_t i) {
    const double share = (static_cast<double>(alive[i].time_ns) - begin) / length;
    return static_cast<size_t>(share * static_cast<double>(stretches));
  };
  const size_t run = std::max<size_t>(1, (alive.size() + stretches - 1) / stretches);
  add_extremes_of(totals, stretch_of_time, chosen);
  add_extremes_of(
      totals, [run](size_t i) { return i / run; }, chosen);
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
