// SPDX-License-Identifier: BSD-3-Clause

// Segments and groups of a cut tape, and which has which.
#pragma once

#include <cstddef>
#include <vector>

#include <remat/tape/cuts.h>

namespace remat {

/// The units that are replayed by themselves: segments, numbered from 0, then groups. All are
/// inside the root.
class CutTree {
 public:
  explicit CutTree(const Cuts& cuts);

  size_t segments() const { return segments_; }
  size_t units() const { return spans_.size() - 1; }
  size_t root() const { return units(); }
  bool is_group(size_t unit) const { return unit >= segments_; }

  /// The unit's first segment, and one past its last.
  size_t begin(size_t unit) const { return spans_[unit].begin; }
  size_t end(size_t unit) const { return spans_[unit].end; }

  size_t parent(size_t unit) const { return parents_[unit]; }

  /// The smallest group that has both segments; or the root.
  size_t common(size_t segment, size_t other) const;

  /// The units that begin with the segment, and those of which it is the last: inner ones first.
  const std::vector<size_t>& beginning(size_t segment) const { return beginning_[segment]; }
  const std::vector<size_t>& ending(size_t segment) const { return ending_[segment]; }

  /// The unit right inside the root that has the segment.
  size_t outermost(size_t segment) const;

  /// The units inside `unit`, and itself: each after those inside it.
  std::vector<size_t> inside(size_t unit) const;

 private:
  void find_parents();
  bool contains(size_t unit, size_t other) const {
    return begin(unit) <= begin(other) && end(other) <= end(unit);
  }

  size_t segments_;
  std::vector<Cuts::Group> spans_;  // of the units and the root
  std::vector<size_t> parents_;
  std::vector<std::vector<size_t>> beginning_;  // by segment
  std::vector<std::vector<size_t>> ending_;
};

}  // namespace remat
