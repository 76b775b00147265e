// SPDX-License-Identifier: BSD-3-Clause

// What produces a region's dropped tensors again: the seam between regions and replay engines.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <string>

#include <remat/tape/export.h>
#include <remat/tape/held_storage.h>
#include <remat/tape/tensor_meta.h>

namespace remat {

class Region;
class RegionInput;
class ReplayedSlots;
class Tape;

/// A value of the forward that a replayer keeps, for those who count bytes.
struct KeptValue {
  std::string name;  ///< "%12 = aten::add.Tensor"
  const TensorMeta& tensor;
  const HeldStorage& storage;
};

/// Fills the slots of one region. A region owns one; it is asked from any thread that runs
/// backward, by several at once.
class REMAT_API Replayer {
 public:
  Replayer() = default;
  Replayer(const Replayer&) = delete;
  Replayer& operator=(const Replayer&) = delete;
  virtual ~Replayer() = default;

  /// Produces the live slots of `region` into `slots`, in slot order. No lock is held. Throws
  /// ReplayMismatch if what is produced is not what the forward saved, and whatever user code
  /// throws.
  virtual void replay(const Region& region, ReplayedSlots& slots) const = 0;

  /// The forward has ended, on its thread. Throws if the region cannot be replayed.
  virtual void finish_forward(const Region& region) = 0;

  /// Shows the tensor arguments that it holds.
  virtual void visit_inputs(c10::function_ref<void(const RegionInput&)> visit) const = 0;

  /// Shows what it keeps of the forward beyond them.
  virtual void visit_kept(c10::function_ref<void(const KeptValue&)> /*visit*/) const {}

  /// The slot of its region has died, others live: what only that slot needs can go. Called if the
  /// region is a unit of a cut tape.
  virtual void slot_released(size_t /*slot*/) const noexcept {}

  /// What it replays from; null if from a function.
  virtual const Tape* tape() const { return nullptr; }
};

}  // namespace remat
