// SPDX-License-Identifier: BSD-3-Clause

// The segments and groups of a cut step, and the backward walk from saved tensors: which records
// each unit must run again, which kept values it reads, and how long each value must live.
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
  int32_t top_index = 0;  ///< Index of `top` among the units that are in no group
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

  /// The group whose replay makes a kept value for its units; root if the forward makes the value.
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

/// A value that a unit's slots hold, until the end of a node of backward.
struct HeldValue {
  int32_t value = 0;
  int32_t until = 0;  ///< Index of that node; the number of nodes means to the end
};

/// The work of a unit's replay.
struct UnitNeeds {
  std::vector<int32_t> runs;          ///< Records to run, ascending
  std::vector<HeldValue> held;        ///< Values made by `runs` that slots hold afterwards
  std::vector<int32_t> given;         ///< Kept values that the unit gets instead of making them
  std::vector<HeldValue> given_held;  ///< Those of `given` that slots hold
  std::vector<int32_t> given_groups;  ///< Groups whose replays make `given`, outer ones first
};

enum class MissingValues : uint8_t {
  kKeep,    ///< Keep values that cross a cut and are not yet in the set of kept values.
  kRefuse,  ///< Throw std::logic_error, since missing values are a defect.
};

/// Note [Until]
/// A kept value, or a group's slot, is released with the last slot that depends on it. So the walk
/// notes for every value the last node of backward that holds anything computed from the value. All
/// slots of a unit are alive when the unit is replayed, because the replay comes before their nodes
/// or, for a group's slots, before the replays of the units that hold these slots.
class StepNeeds {
 public:
  StepNeeds(const StepGraph& graph, const StepUnits& units);

  /// `keep`: per value, not 0 if replays get the value instead of making it again. With kKeep,
  /// values that cross a cut are added to `keep`.
  void walk(std::vector<char>& keep, MissingValues missing);

  const UnitNeeds& of(int32_t unit) const { return needs_[unit]; }
  const std::vector<HeldValue>& kept_at_root() const { return kept_at_root_; }
  bool is_used(int32_t kept) const { return kept_until_[kept] >= 0; }  ///< True if any slot uses it
  /// Values from outside that replays read and that the step overwrites, so that copies are kept.
  const std::vector<int32_t>& copied_from_outside() const { return copied_from_outside_; }

 private:
  void walk_unit(int32_t unit);
  void ask(int32_t value, int32_t until);
  void ask_outside(int32_t value);
  void ask_for_slots(int32_t unit);
  void hold(int32_t value, int32_t until);
  bool is_given(int32_t value);
  void hand_on_given(UnitNeeds& needs);

  const StepGraph& graph_;
  const StepUnits& units_;
  std::vector<UnitNeeds> needs_;
  std::vector<HeldValue> kept_at_root_;
  std::vector<int32_t> copied_from_outside_;
  std::vector<std::vector<int32_t>> group_slots_;
  std::vector<int32_t> kept_until_;

  struct Asked {
    int32_t unit = -1;  ///< The last unit in whose walk the value was asked for
    int32_t until = -1;
    bool given = false;
    int32_t held = -1;  ///< Index into UnitNeeds::held or given_held
  };
  std::vector<Asked> asked_;
  std::vector<char>* keep_ = nullptr;
  MissingValues missing_ = MissingValues::kRefuse;
  int32_t unit_ = -1;
};

}  // namespace remat::detail
