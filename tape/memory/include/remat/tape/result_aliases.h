// SPDX-License-Identifier: BSD-3-Clause

// Results of regions that are written by way of `data`.
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

/// Note [Results by way of data]: after a region nobody sees ops. But `y.data` of a result is asked
/// of LibTorch's VariableHooks (Note [Data hooks]), before anybody can write by way of it. So the
/// bytes of a region's result are hashed then, with a number of UnversionedWrites, and looked at
/// again when backward asks for what was saved before that, as long as somebody has the memory. On
/// a GPU that waits for the device and copies up to 1 MiB of elements, spread over the tensor, to
/// the host: only programs that ask for `data` of a result pay.
///
/// From any thread.
class REMAT_API ResultAliases {
 public:
  /// A region returns these results.
  static void note_results(c10::ArrayRef<at::Tensor> results) noexcept;

  /// False if no region has returned a tensor on the memory of `tensor`.
  static bool may_be_result(const at::Tensor& tensor) noexcept;

  /// Somebody gets a tensor on the memory of a region's `result` that has versions of its own.
  static void before_alias(const at::Tensor& result);

  /// True if a result of a region that is `saved`, or shares its memory through views, has been
  /// changed in one of these ways since it was saved.
  static bool changed(const SavedVersion& saved);
};

}  // namespace remat
