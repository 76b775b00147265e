// SPDX-License-Identifier: BSD-3-Clause

// Replay of one unit of a cut tape.
#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include <remat/tape/replayer.h>
#include <remat/tape/tape_replayer.h>

#include "cut_value.h"

namespace remat {

/// Fills the slots of a segment with what backward wants, those of a group with what its units read
/// of each other. Keeps the whole tape, and of its tensors those that it starts from.
class SegmentReplayer final : public Replayer {
 public:
  SegmentReplayer(std::shared_ptr<const TapeReplayer> whole, std::shared_ptr<const Region> root,
                  size_t unit)
      : whole_(std::move(whole)), root_(std::move(root)), unit_(unit) {}

  /// The unit has ended: it starts from `inputs`. Once.
  void set_inputs(std::vector<std::shared_ptr<const CutValue>> inputs) {
    inputs_ = std::move(inputs);
  }

  void replay(const Region& region, ReplayedSlots& slots) const override;
  void finish_forward(const Region& /*region*/) override {}
  void visit_inputs(c10::function_ref<void(const RegionInput&)> /*visit*/) const override {}
  void visit_kept(c10::function_ref<void(const KeptValue&)> visit) const override;

 private:
  std::shared_ptr<const TapeReplayer> whole_;
  std::shared_ptr<const Region> root_;
  size_t unit_;
  std::vector<std::shared_ptr<const CutValue>> inputs_;
  mutable std::atomic<bool> compared_{false};
};

}  // namespace remat
