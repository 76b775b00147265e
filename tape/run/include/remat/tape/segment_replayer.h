// SPDX-License-Identifier: BSD-3-Clause

// Replay of one unit of a cut tape.
#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include <remat/engine/replayer.h>
#include <remat/tape/tape_replayer.h>
#include <remat/tape/unit_inputs.h>

namespace remat {

/// Fills a segment's slots with values for backward, or a group's slots with values that one unit
/// of the group makes for others. Keeps the whole tape alive, but no input tensors of other units.
class SegmentReplayer final : public Replayer {
 public:
  SegmentReplayer(std::shared_ptr<const TapeReplayer> whole, std::shared_ptr<const Region> root,
                  size_t unit)
      : whole_(std::move(whole)), root_(std::move(root)), unit_(unit) {}

  /// The unit's inputs; empty until the unit has ended.
  UnitInputs& inputs() { return inputs_; }

  void replay(const Region& region, ReplayedSlots& slots) const override;
  void finish_forward(const Region& /*region*/) override {}
  void visit_inputs(c10::function_ref<void(const RegionInput&)> /*visit*/) const override {}
  void visit_kept(c10::function_ref<void(const KeptValue&)> visit) const override;
  void slot_released(size_t slot) const noexcept override { inputs_.release(slot); }

 private:
  std::shared_ptr<const TapeReplayer> whole_;
  std::shared_ptr<const Region> root_;
  size_t unit_;
  mutable UnitInputs inputs_;
  mutable std::atomic<bool> compared_{false};
};

}  // namespace remat
