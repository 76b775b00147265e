// SPDX-License-Identifier: BSD-3-Clause

// The units of a tape that is being cut.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/irange.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include <remat/engine/planned_cuts.h>
#include <remat/engine/region.h>
#include <remat/tape/cut_tree.h>
#include <remat/tape/cut_values.h>
#include <remat/tape/segment_replayer.h>
#include <remat/tape/tape.h>
#include <remat/tape/tape_replayer.h>
#include <remat/tape/unit_inputs.h>

namespace remat {

/// Has a region and a replayer for each unit until the function has returned, and finds the values
/// that each unit reads from outside itself.
class CutUnits {
 public:
  /// `root` is the user's region, which has the logs; `whole` replays the whole tape; `kept` has
  /// the values that the forward keeps.
  CutUnits(Tape& tape, const PlannedCuts& cuts, std::shared_ptr<Region> root,
           std::shared_ptr<const TapeReplayer> whole, const CutValues& kept);

  const CutTree& tree() const { return tree_; }
  const Region& root() const { return *root_; }
  const std::shared_ptr<Region>& region(size_t unit) const { return regions_[unit]; }

  /// Opens the units that begin with this segment and record. `is_planned`: false for an added
  /// segment, for which the cuts have no policy.
  void open(size_t segment, size_t record, bool is_planned);
  /// Ends the units whose last segment is `segment`. `record` is the first record after them.
  void end(size_t segment, size_t record);

  /// The tape ends with `records` records, so units that were not reached are empty.
  void end_tape(size_t records);

  /// Makes the segment the last one: see CutTree::end_with(). Call it before add_segment().
  void end_with(size_t segment) { tree_.end_with(segment); }
  void add_segment();

  /// Adds a slot to `group` for the value of `tensor`, because one unit of the group makes the
  /// value and another reads it. Returns false if the value has a slot already.
  bool add_group_slot(const TapeRef& ref, const at::Tensor& tensor, size_t group);

  /// Call it when `top`, a unit directly inside the root, and the next such unit have ended. The
  /// units in `top` find their inputs and hold them.
  void close(size_t top);

  /// True if slots have died since the inputs were found.
  bool has_new_dead_slots() const { return live_slots() != live_slots_; }
  /// Finds all inputs again when the function has returned. By then all kept values are known, and
  /// slots that autograd has freed need no inputs. With `begin_earlier`, a unit that misses values
  /// begins at the start of the tape. Group slots that no unit reads any more are given up.
  void find_inputs_again(bool begin_earlier);

  /// Throws a ValueError if a unit reads a value that neither the unit makes nor anybody keeps.
  void check_missing() const;
  bool misses_any() const { return !missing_.empty(); }
  /// Indexed by value: true if some replay reads or makes the value.
  const std::vector<bool>& needed() const { return needed_; }

  /// Calls visit(number, slot, is_live) for the slots of segments 0 to `last`, in order of number.
  template <class Visit>
  void for_each_slot(size_t last, Visit&& visit) {
    size_t number = 0;
    for (size_t segment = 0; segment <= last; ++segment) {
      const size_t unit = tree_.unit_of(segment);
      std::vector<TapeSlot>& slots = tape_.parts_[unit].slots;
      for (const auto i : c10::irange(slots.size()))
        visit(number++, slots[i], regions_[unit]->slots()[i].live);
    }
  }

  /// Call it when the function has returned.
  void finish();

 private:
  /// Maps a value to its slot's index and to its CutValue, which is null if no unit reads the slot.
  using GroupSlots = std::unordered_map<uint32_t, std::pair<size_t, std::shared_ptr<CutValue>>>;

  void open_unit(size_t unit, size_t segment, bool is_planned);
  std::shared_ptr<CutValue> outer_value(uint32_t value, size_t reader);
  UnitInputs::Found search(size_t unit);
  void find_inputs(size_t unit);
  size_t live_slots() const;
  void drop_unread_slots(size_t group);

  Tape& tape_;
  const std::shared_ptr<Region> root_;
  const std::shared_ptr<const TapeReplayer> whole_;
  const CutValues& kept_;
  const std::vector<std::shared_ptr<const RegionPolicy>> policies_;
  CutTree tree_;
  // By unit.
  std::vector<std::shared_ptr<Region>> regions_;
  std::vector<std::shared_ptr<SegmentReplayer>> replayers_;
  std::vector<GroupSlots> group_slots_;  // By unit, then by value; empty for segments.
  size_t live_slots_ = 0;                // Live slots of all units when inputs were found.
  std::vector<uint32_t> missing_;        // Values that a unit reads but neither makes nor gets.
  std::vector<bool> needed_;             // By value.
};

}  // namespace remat
