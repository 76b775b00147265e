// SPDX-License-Identifier: BSD-3-Clause

// What produces a region's dropped tensors again: the seam between regions and replay engines.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <remat/tape/export.h>

namespace remat {

class Region;
class RegionInput;
class ReplayedSlots;

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
};

}  // namespace remat
