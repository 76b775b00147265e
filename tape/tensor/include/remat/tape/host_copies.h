// SPDX-License-Identifier: BSD-3-Clause

// Copies from a device to the host that return before they are done.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>
#include <c10/util/SmallVector.h>

#include <cstddef>

#include <remat/tape/export.h>
#include <remat/tape/op_call.h>

namespace remat {

/// The position of the argument "non_blocking"; the number of arguments if there is none.
REMAT_API size_t non_blocking_argument(const c10::FunctionSchema& schema);

/// Waits for a copy to the host that was told not to wait.
///
/// Note [Copies to the host]: a program that copies to the host without waiting waits later, by an
/// event or for the device, which no op shows. remat may read that memory before: hooks, stores and
/// copies before a write get what an op has made as soon as it has run. So in a region such a copy
/// waits, and a tape, which does not repeat the waits of the function, has one that waits.
class REMAT_API HostCopy {
 public:
  /// The op is about to run; `non_blocking` is the position of that argument.
  HostCopy(const OpCall& call, size_t non_blocking);

  /// True if it copies to the host and is told not to wait.
  bool returns_early() const { return !devices_.empty(); }

  /// The op has run.
  void wait() const;

 private:
  c10::SmallVector<c10::Device, 1> devices_;  // that it copies from
};

}  // namespace remat
