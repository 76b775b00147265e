// SPDX-License-Identifier: BSD-3-Clause

// The kernel that watches an op outside of regions.
#pragma once

#include <ATen/core/boxing/OperatorKernel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <remat/tape/op_call.h>

namespace remat {

/// Note [Plain writes]: outside of regions ops are not seen, and a write shows in the version of
/// what it writes. Batch norm gives its running statistics no new version, nor does its schema say
/// that it writes them. So these few ops have a kernel behind autograd, where plain code passes by:
/// it does what a region does with a write of what an earlier region has read or saved.
class PlainWrites final : public c10::OperatorKernel {
 public:
  explicit PlainWrites(const OpInfo& info) : info_(info) {}

  /// True for an op whose schema hides that it writes.
  static bool hides_writes(const c10::FunctionSchema& schema, const OpInfo& info) {
    return info.writes() && !schema.is_mutable();
  }

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack) const;

 private:
  const OpInfo& info_;
};

}  // namespace remat
