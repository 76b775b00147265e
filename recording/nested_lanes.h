// SPDX-License-Identifier: BSD-3-Clause

// Lanes for a trace's track, because the slices of one lane must nest.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include <remat/recording/events.h>

namespace remat::detail {

/// Assigns the slices of a track to as many lanes as needed: ops that end on another thread than
/// the one they began on overlap later ops.
class NestedLanes {
 public:
  /// Ends the slices that have ended by `begin_ns`, innermost first: `end(lane, time_ns)` for each.
  template <class End>
  void end_until(TimeNs begin_ns, End&& end) {
    for (size_t lane = 0; lane < ends_.size(); ++lane) {
      for (auto& open = ends_[lane]; !open.empty() && open.back() <= begin_ns; open.pop_back())
        end(lane, open.back());
    }
  }

  /// The first lane in which the slice nests, else a new one. Call end_until() with its begin
  /// first.
  size_t begin(TimeNs end_ns) {
    const auto fits = [&](const std::vector<TimeNs>& open) {
      return open.empty() || open.back() >= end_ns;
    };
    const auto lane = std::find_if(ends_.begin(), ends_.end(), fits);
    if (lane != ends_.end()) {
      lane->push_back(end_ns);
      return static_cast<size_t>(lane - ends_.begin());
    }
    ends_.push_back({end_ns});
    return ends_.size() - 1;
  }

 private:
  std::vector<std::vector<TimeNs>> ends_;  // by lane, the innermost last
};

}  // namespace remat::detail
