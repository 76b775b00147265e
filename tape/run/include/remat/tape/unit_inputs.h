// SPDX-License-Identifier: BSD-3-Clause

// The inputs of a unit of a cut tape.
#pragma once

#include <c10/util/FunctionRef.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/region.h>
#include <remat/tape/cut_value.h>
#include <remat/tape/tape.h>

namespace remat {

/// The values from which a unit's replays start. An input is freed with the last live slot that is
/// made from it. Call set() on the forward's thread, and other members on any thread.
class REMAT_API UnitInputs {
 public:
  using Values = std::vector<std::shared_ptr<const CutValue>>;
  /// Ascending positions in a list of values.
  using Positions = c10::SmallVector<uint32_t, 4>;

  struct Found {
    Values values;
    std::vector<Positions> of_slot;  ///< The inputs from which each slot is made.
    std::vector<uint32_t> missing;   ///< Needed values, neither made in the unit nor inputs.
  };

  /// Walks back from the slots of `part` that are live in `region`. `given(value)` returns a value
  /// that the unit gets from outside itself, or null if the unit makes the value. Sets
  /// `needed[value]` for all values that replays read or make.
  static Found find(const Tape& tape, const TapePart& part, const Region& region,
                    c10::function_ref<std::shared_ptr<const CutValue>(uint32_t value)> given,
                    std::vector<bool>& needed);

  /// Holds the inputs that live slots of `region` need, instead of the inputs held before.
  void set(Found found, const Region& region);

  /// The inputs that live slots need.
  Values held() const;

  /// Call it when the slot has died. Gives up the inputs that no other live slot needs.
  void release(size_t slot) noexcept;

 private:
  mutable std::mutex mutex_;
  Values values_;                   // Null where no live slot needs the value.
  std::vector<uint32_t> readers_;   // Number of live slots per value.
  std::vector<Positions> of_slot_;  // Empty for dead slots.
};

}  // namespace remat
