// SPDX-License-Identifier: BSD-3-Clause

// Walks back from what backward saved: what each unit has to make again, what it is given, and how
// long everything has to live.
#pragma once

#include <cstdint>
#include <vector>

#include "step_units.h"

namespace remat::detail {

/// A value that a unit's slots hold, until the end of a node of backward.
struct HeldValue {
  int32_t value = 0;
  int32_t until = 0;  ///< The number of nodes: to the end.
};

/// What a unit's replay does.
struct UnitNeeds {
  std::vector<int32_t> runs;          ///< Records, ascending
  std::vector<HeldValue> held;        ///< Values made here that slots hold afterwards
  std::vector<int32_t> given;         ///< Kept values that it is given
  std::vector<HeldValue> given_held;  ///< Of these, those that slots hold
  std::vector<int32_t> given_groups;  ///< Groups that give them, outer ones first
};

enum class MissingValues : uint8_t {
  kKeep,    ///< Keep what crosses a cut and is not kept.
  kRefuse,  ///< That is a defect: std::logic_error.
};

/// Note [Until]
/// A kept value, or a group's slot, is let go with the last slot that depends on it, so the walk
/// back hands every value the last node of backward that anything computed from it is held for.
/// All slots of a unit are alive when it is replayed: they die with nodes that have it replayed
/// first, and a group's slots with slots of units that have the group replayed first.
class StepNeeds {
 public:
  StepNeeds(const StepGraph& graph, const StepUnits& units);

  /// `keep`: per value, may it cross and be saved? Adds to it under kKeep.
  void walk(std::vector<char>& keep, MissingValues missing);

  const UnitNeeds& of(int32_t unit) const { return needs_[unit]; }
  const std::vector<HeldValue>& kept_at_root() const { return kept_at_root_; }
  bool is_used(int32_t kept) const { return kept_until_[kept] >= 0; }  ///< By any slot
  /// Values from outside that replays read and the step overwrites: copies of them are kept.
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
    int32_t unit = -1;  ///< The walk that asked last
    int32_t until = -1;
    bool given = false;
    int32_t held = -1;  ///< Index into UnitNeeds::held, or given_held
  };
  std::vector<Asked> asked_;
  std::vector<char>* keep_ = nullptr;
  MissingValues missing_ = MissingValues::kRefuse;
  int32_t unit_ = -1;
};

}  // namespace remat::detail
