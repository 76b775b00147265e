// SPDX-License-Identifier: BSD-3-Clause

// Replay from a tape, in C++, without the user's function.
#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

#include <remat/engine/export.h>
#include <remat/engine/function_replayer.h>
#include <remat/engine/region_entry.h>
#include <remat/engine/region_input.h>
#include <remat/engine/replayer.h>
#include <remat/tape/tape.h>
#include <remat/tape/tape_trust.h>

namespace remat {

class CutValue;

/// Runs the records that live slots need, in order, on new memory, so nothing outside is written
/// and the function is not called. If no tape could be recorded, calls the function instead.
class REMAT_API TapeReplayer final : public Replayer {
 public:
  TapeReplayer(std::unique_ptr<const FunctionReplayer> function, std::shared_ptr<RegionEntry> entry,
               TapeTrust trust)
      : trust_(trust), function_(std::move(function)), entry_(std::move(entry)) {}

  /// The tape for the forward to record.
  Tape& writable_tape() { return tape_; }

  /// The tape for replays; null if it could not be recorded.
  const Tape* tape() const override { return tape_.failure().empty() ? &tape_ : nullptr; }

  /// Call it when the forward has ended. If there is a tape, drops what only the function needs.
  void finish_forward(const Region& region) override;

  void replay(const Region& region, ReplayedSlots& slots) const override;

  /// Fills the slots of `region`, which is part `unit` of the tape of `root`. `inputs` are values
  /// that other parts have made.
  void replay_part(const Region& root, const Region& region, size_t unit,
                   c10::ArrayRef<std::shared_ptr<const CutValue>> inputs,
                   ReplayedSlots& slots) const;

  /// Call it when a part has been replayed for the first time. A tape with hashes becomes trusted
  /// when all parts have been, because each replay has compared its part.
  void note_compared() const;

  void visit_inputs(c10::function_ref<void(const RegionInput&)> visit) const override {
    for (const RegionInput& input : entry_->inputs()) visit(input);
  }

 private:
  void count_parts_to_compare();

  Tape tape_;
  TapeTrust trust_;
  size_t parts_to_compare_ = 0;
  mutable std::atomic<size_t> compared_parts_{0};
  std::unique_ptr<const FunctionReplayer> function_;  // Null once there is a tape.
  std::shared_ptr<RegionEntry> entry_;
};

}  // namespace remat
