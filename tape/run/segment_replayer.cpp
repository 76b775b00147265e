// SPDX-License-Identifier: BSD-3-Clause

// Replaying a unit's part of the tape from its inputs.
#include <remat/tape/segment_replayer.h>

#include <c10/util/Exception.h>

#include "tape_run.h"

namespace remat {

void SegmentReplayer::replay(const Region& region, ReplayedSlots& slots) const {
  TORCH_CHECK(root_->closed(), "[replay] ", region.label(),
              ": expected the region's function to have returned, got a read of what it saved "
              "before that. Read it after the region.");
  const UnitInputs::Values inputs = inputs_.held();
  whole_->replay_part(*root_, region, unit_, inputs, slots);
  if (!compared_.exchange(true)) whole_->note_compared();
}

void SegmentReplayer::visit_kept(c10::function_ref<void(const KeptValue&)> visit) const {
  for (const auto& input : inputs_.held()) {
    const CallProduct* const kept = input->kept();
    if (!kept) continue;
    visit({.name = c10::str("%", input->value(), " = ", whole_->tape()->maker(input->value())),
           .meta = kept->meta(),
           .storage = kept->storage()});
  }
}

}  // namespace remat
