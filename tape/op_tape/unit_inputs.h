// SPDX-License-Identifier: BSD-3-Clause

// What a unit of a cut tape starts from.
#pragma once

#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <remat/tape/region.h>
#include <remat/tape/tape.h>

#include "cut_value.h"

namespace remat {

/// The values that a unit's replays start from. Each is let go with the last live slot that is made
/// from it. Set on the forward's thread; everything else may be called from any thread.
class UnitInputs {
 public:
  using Values = std::vector<std::shared_ptr<const CutValue>>;
  /// Positions in a list of values, ascending.
  using Positions = c10::SmallVector<uint32_t, 4>;

  struct Found {
    Values values;
    std::vector<Positions> of_slot;  ///< What each slot is made from.
    std::vector<uint32_t> missing;   ///< Made by no record of the unit, and given by nobody.
  };

  /// Walks back from the slots of `part` that live in `region`: `given(value)` says what gives it
  /// from around the unit, null if the unit makes it itself. `needed[value]` is set of all that
  /// replays read or make.
  static Found find(const Tape& tape, const TapePart& part, const Region& region,
                    c10::function_ref<std::shared_ptr<const CutValue>(uint32_t value)> given,
                    std::vector<bool>& needed);

  /// Takes hold of what live slots of `region` need, and lets go what it held before.
  void set(Found found, const Region& region);

  /// Those that live slots need.
  Values held() const;

  /// The slot has died.
  void release(size_t slot) noexcept;

 private:
  mutable std::mutex mutex_;
  Values values_;                   // null: no live slot needs it
  std::vector<uint32_t> readers_;   // of each: how many live slots
  std::vector<Positions> of_slot_;  // of dead ones none
};

}  // namespace remat
