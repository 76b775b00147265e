// SPDX-License-Identifier: BSD-3-Clause

// Device-to-host copies that return before they are done.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <cstddef>

#include <remat/engine/export.h>
#include <remat/engine/op_call.h>

namespace remat {

/// Position of the argument "non_blocking"; the number of arguments if there is none.
REMAT_API size_t non_blocking_argument(const c10::FunctionSchema& schema);

/// Waits for a non-blocking copy to the host.
///
/// Note [Copies to the host]: a program that starts a non-blocking copy to the host waits for that
/// copy later, and no op shows the wait. remat may read the copy earlier: hooks, stores and copies
/// before a write get an op's result as soon as the op has run. So remat waits for such copies in a
/// region, and when a tape is replayed, because a tape does not repeat the function's waits.
class REMAT_API HostCopy {
 public:
  /// Construct it before the op runs; `non_blocking` is the op's non_blocking_argument().
  HostCopy(const OpCall& call, size_t non_blocking);

  /// True if the op copies to the host and returns without waiting.
  bool returns_early() const { return !devices_.empty(); }

  /// Call it after the op has run.
  void wait() const;

 private:
  c10::SmallVector<c10::Device, 1> devices_;  // Devices that the op copies from.
};

}  // namespace remat
