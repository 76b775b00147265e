// SPDX-License-Identifier: BSD-3-Clause

// The segments and groups of a cut step, and the home of each kept value.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "step_graph.h"

namespace remat::detail {

using StepGroups = std::vector<std::pair<int32_t, int32_t>>;
using CutPlaces = std::pair<std::vector<int32_t>, StepGroups>;  ///< Positions and groups of cuts

struct StepUnit {
  int32_t first_segment = 0;
  int32_t end_segment = 0;
  int32_t begin = 0;      ///< First record
  int32_t end = 0;        ///< Record after the last
  int32_t parent = -1;    ///< The innermost enclosing group; root if there is none
  int32_t top = -1;       ///< The unit itself, or the outermost group around it
  int32_t top_index = 0;  ///< Number of tops before that
};

class StepUnits {
 public:
  static constexpr int32_t root = -1;

  StepUnits(const StepGraph& graph, const std::vector<int32_t>& positions,
            const StepGroups& groups);

  int32_t size() const { return static_cast<int32_t>(units_.size()); }
  int32_t segments() const { return segments_; }
  const StepUnit& operator[](int32_t unit) const { return units_[unit]; }
  int32_t segment_of(int32_t record) const { return segment_of_[record]; }

  /// The group whose replay makes a kept value for units in it; root if the forward makes it.
  int32_t home(int32_t value) const { return homes_[value]; }

  bool properly_around(int32_t outer, int32_t inner) const;

  /// Later segments first, inner units before those around them, so that users of a value come
  /// before its maker.
  const std::vector<int32_t>& backward_order() const { return order_; }

 private:
  void find_parents();
  int32_t find_home(const StepGraph& graph, int32_t value) const;
  bool holds(int32_t unit, int32_t segment) const;

  int32_t segments_ = 0;
  std::vector<StepUnit> units_;
  std::vector<int32_t> segment_of_;
  std::vector<int32_t> homes_;
  std::vector<int32_t> order_;
};

}  // namespace remat::detail
