// SPDX-License-Identifier: BSD-3-Clause

// The interface between regions and replay engines, which recompute dropped tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <string>
#include <vector>

#include <remat/engine/export.h>
#include <remat/engine/held_storage.h>
#include <remat/engine/tensor_meta.h>

namespace remat {

class Region;
class RegionInput;
class Tape;

/// A value of the forward that a replayer or its tape keeps, for memory reports.
struct KeptValue {
  std::string name;  ///< Such as "%12 = aten::add.Tensor".
  TensorMeta meta;
  HeldStorage storage;
};

/// The values that one replay gives a region's slots, by index; undefined where it gives none.
using ReplayedSlots = std::vector<at::Tensor>;

/// Fills the slots of one region, which owns the replayer. Called from any thread that runs
/// backward, possibly by several at once.
class REMAT_API Replayer {
 public:
  Replayer() = default;
  Replayer(const Replayer&) = delete;
  Replayer& operator=(const Replayer&) = delete;
  virtual ~Replayer() = default;

  /// Recomputes the live slots of `region` into `slots`, in slot order. Called with no lock held.
  /// Throws ReplayMismatch if a result differs from what the forward saved, and whatever user code
  /// throws.
  virtual void replay(const Region& region, ReplayedSlots& slots) const = 0;

  /// Called on the forward's thread when the forward has ended. Throws if no replay is possible.
  virtual void finish_forward(const Region& region) = 0;

  /// Calls `visit` for each tensor argument that this replayer holds.
  virtual void visit_inputs(c10::function_ref<void(const RegionInput&)> visit) const = 0;

  /// Calls `visit` for each other value of the forward that this replayer keeps.
  virtual void visit_kept(c10::function_ref<void(const KeptValue&)> /*visit*/) const {}

  /// Called if the region is a unit of a cut tape, when a slot of the region has died and others
  /// live. The replayer may free what only that slot needs.
  virtual void slot_released(size_t /*slot*/) const noexcept {}

  /// The tape that this replayer runs; null if it calls a function.
  virtual const Tape* tape() const { return nullptr; }
};

}  // namespace remat
