// SPDX-License-Identifier: BSD-3-Clause

// A step profile with the arrows turned round: who reads, saves and overwrites each value.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include <remat/memory_plan/step_cuts.h>
#include <remat/memory_plan/step_profile.h>

namespace remat::detail {

struct StepGraph {
  /// The profile must be valid, and outlive this.
  explicit StepGraph(const StepProfile& from);

  int32_t size() const { return static_cast<int32_t>(profile.records.size()); }
  int64_t bytes(int32_t value) const { return profile.values[value].bytes; }
  /// While a unit runs again
  int64_t replay_bytes(int32_t value) const {
    return maker(value) < 0 ? profile.values[value].unpacked_bytes : bytes(value);
  }
  int32_t maker(int32_t value) const { return profile.values[value].maker; }
  /// The node until whose end it is held; the number of nodes: to the end.
  int32_t until(const StepSlot& slot) const {
    return slot.node < 0 ? static_cast<int32_t>(profile.nodes.size()) : slot.node;
  }
  /// In memory that is not the step's own?
  bool is_outside(int32_t value) const { return maker(profile.values[value].storage) < 0; }

  /// Is its memory the program's own when the forward has ended? Of a storage only the newest value
  /// can be.
  bool is_programs(int32_t value) const {
    return overwritten_by[value] == never && !is_outside(value) &&
           profile.values[value].held_until >= size();
  }

  static constexpr int32_t never = std::numeric_limits<int32_t>::max();

  const StepProfile& profile;
  std::vector<std::vector<int32_t>> results;  ///< Per record: what it makes, then what it leaves
                                              ///< in what it writes
  /// Per value: records that read its data, and those during which it is saved, ascending.
  std::vector<std::vector<int32_t>> uses;
  std::vector<int32_t> overwritten_by;                ///< Per value: a record, or `never`
  std::vector<std::vector<int32_t>> slots_of_record;  ///< Those whose value a record makes
  /// All: a node that reads any of a unit's slots has the unit replayed.
  std::vector<std::vector<int32_t>> slots_of_node;
};

/// Per value, what becomes of it.
enum KeepFlag : char { kNotKept = 0, kKept = 1, kMoved = 2 };

/// Per value: is it among what the cuts keep? A KeepFlag.
std::vector<char> kept_flags(const StepProfile& profile, const StepCuts& cuts);

}  // namespace remat::detail
