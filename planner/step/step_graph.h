// SPDX-License-Identifier: BSD-3-Clause

// A step profile with reversed edges: who reads, saves and overwrites each value.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include <remat/planner/step_cuts.h>
#include <remat/planner/step_profile.h>

namespace remat::detail {

struct StepGraph {
  /// The profile must be valid, and must outlive this object.
  explicit StepGraph(const StepProfile& from);

  int32_t size() const { return static_cast<int32_t>(profile.records.size()); }
  int64_t bytes(int32_t value) const { return profile.values[value].bytes; }
  /// Bytes that the value takes while a unit is replayed.
  int64_t replay_bytes(int32_t value) const {
    return maker(value) < 0 ? profile.values[value].unpacked_bytes : bytes(value);
  }
  int32_t maker(int32_t value) const { return profile.values[value].maker; }
  /// The node at whose end the slot is freed; the number of nodes stands for the step's end.
  int32_t until(const StepSlot& slot) const {
    return slot.node < 0 ? static_cast<int32_t>(profile.nodes.size()) : slot.node;
  }
  /// True if the value is in memory from outside the step.
  bool is_outside(int32_t value) const { return maker(profile.values[value].storage) < 0; }

  /// True if the program itself holds the value when the forward has ended. That is possible only
  /// for the newest value of a storage that the step has made.
  bool is_programs(int32_t value) const {
    return overwritten_by[value] == never && !is_outside(value) &&
           profile.values[value].held_until >= size();
  }

  static constexpr int32_t never = std::numeric_limits<int32_t>::max();

  const StepProfile& profile;
  /// Per record: the values that it makes, then the new values of storages that it writes.
  std::vector<std::vector<int32_t>> results;
  /// Per value: records that read its data, and those during which it is saved, ascending.
  std::vector<std::vector<int32_t>> uses;
  std::vector<int32_t> overwritten_by;  ///< Per value: a record, or `never`
  /// Per record: slots with this StepSlot::record whose value the step makes
  std::vector<std::vector<int32_t>> slots_of_record;
  /// Per node: all slots that the node reads. A slot's unit is replayed before such a node.
  std::vector<std::vector<int32_t>> slots_of_node;
};

/// Whether a plan keeps a value. kMoved: the plan keeps the value by offloading it.
enum KeepFlag : char { kNotKept = 0, kKept = 1, kMoved = 2 };

/// Hash of a record's op, of the values it reads, makes and writes, and of their sizes.
uint64_t record_digest(const StepProfile& profile, const StepRecord& record);

/// The KeepFlag of each value.
std::vector<char> kept_flags(const StepProfile& profile, const StepCuts& cuts);

}  // namespace remat::detail
