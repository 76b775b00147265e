// SPDX-License-Identifier: BSD-3-Clause

// The tree of segments and groups of a cut tape.
#pragma once

#include <cstddef>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/planned_cuts.h>

namespace remat {

/// The units that are replayed separately. Planned segments have the lowest numbers, then come the
/// groups, then added segments. The root is the whole tape, around all units.
class REMAT_API CutTree {
 public:
  static constexpr size_t kRoot = ~size_t{0};

  explicit CutTree(const PlannedCuts& cuts);

  size_t units() const { return spans_.size(); }
  size_t unit_of(size_t segment) const {
    return segment < planned_ ? segment : segment - planned_ + end_of_groups_;
  }
  bool is_group(size_t unit) const { return unit >= first_group_ && unit < end_of_groups_; }

  /// The unit's segments are [begin, end).
  size_t begin(size_t unit) const { return spans_[unit].begin; }
  size_t end(size_t unit) const { return spans_[unit].end; }

  size_t parent(size_t unit) const { return parents_[unit]; }
  size_t groups_around(size_t unit) const;

  /// The smallest group that contains both segments; kRoot if there is none.
  size_t common(size_t segment, size_t other) const;

  /// The units that begin, and those that end, with `segment`. Inner units come first.
  const std::vector<size_t>& beginning(size_t segment) const { return beginning_[segment]; }
  const std::vector<size_t>& ending(size_t segment) const { return ending_[segment]; }

  /// The unit directly inside the root that contains the segment.
  size_t outermost(size_t segment) const;

  /// Returns `unit`, unless it is kRoot, and all units inside it, each after the units that it
  /// contains. `unit` must be kRoot or directly inside the root.
  std::vector<size_t> inside(size_t unit) const;

  /// Makes `segment` the last planned one, so the groups around it end with it. Call it before the
  /// first add_segment().
  void end_with(size_t segment);
  /// Adds a segment inside the root or, if cuts are made while the tape is recorded, inside the
  /// group of all segments.
  void add_segment();

 private:
  size_t segments() const { return beginning_.size(); }
  void find_parents();

  size_t first_group_;
  size_t planned_;                  // Number of segments, without added ones.
  size_t adds_to_;                  // The unit that contains added segments.
  std::vector<Cuts::Group> spans_;  // By unit.
  size_t end_of_groups_;
  std::vector<size_t> parents_;
  std::vector<std::vector<size_t>> beginning_;  // By segment.
  std::vector<std::vector<size_t>> ending_;
};

}  // namespace remat
