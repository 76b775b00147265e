// SPDX-License-Identifier: BSD-3-Clause

// Results of regions that are written through `data`.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <remat/tape/export.h>
#include <remat/tape/tensor_meta.h>

namespace remat {

inline constexpr const char* kResultChanged =
    "expected the tensor as the forward left it, got a region's result that was written by way of "
    "another tensor with versions of its own (made by `.data`) after the region: autograd would go "
    "on with the new values in silence, a replay with those that were saved. Write it with "
    "gradients off (`with torch.no_grad(): y.mul_(2)`), which autograd "
    "notices, or write a clone().";

/// Note [Results by way of data]: after a region nobody sees ops. But reading `y.data` of a result
/// calls LibTorch's VariableHooks (Note [Data hooks]) before anybody can write through it. The
/// bytes of the region's result are hashed at that moment, numbered among UnversionedWrites. They
/// are compared when backward asks for what was saved earlier, as long as somebody has the memory.
/// On a GPU that waits for the device and copies up to 1 MiB of elements, spread over the tensor,
/// to the host: only programs that read `data` of a result pay.
///
/// Usable from any thread.
class REMAT_API ResultAliases {
 public:
  /// Notes the results that a region returns.
  static void note_results(c10::ArrayRef<at::Tensor> results) noexcept;

  /// False if no region has returned a tensor on the memory of `tensor`.
  static bool may_be_result(const at::Tensor& tensor) noexcept;

  /// Call it before somebody gets a tensor on the memory of a region's `result` with its own
  /// version counter.
  static void before_alias(const at::Tensor& result);

  /// True if `saved` is a region's result, or shares memory with one through views, and has been
  /// changed through such an alias since it was saved.
  static bool changed(const SavedVersion& saved);
};

}  // namespace remat
