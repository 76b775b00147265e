// SPDX-License-Identifier: BSD-3-Clause

// Gradients that are the saved tensors of custom functions.
#pragma once

#include <ATen/core/Tensor.h>

namespace remat {

/// Note [Gradients that are saved tensors]: the backward of a custom function may return what it
/// has saved as a gradient. AccumulateGrad makes that tensor a leaf's .grad, without a copy, if
/// nobody else has it. In plain code whoever passed it to the function may have it. What hooks give
/// is a tensor that nobody else has, but on memory that others may have: an argument, a weight, a
/// kept result, which whoever writes the .grad would then write. So it is noted which memory such a
/// node is given, and the leaves behind it. When the thread's next node is given something, or the
/// backward ends, a .grad on that memory is exchanged for a copy, if others have the memory, and
/// gets versions of its own.
///
/// From any thread, in a backward or outside.
struct TakenGradients {
  /// The node that runs, if one does, is given `value`, which it has saved.
  static void note_given(const at::Tensor& value);
};

}  // namespace remat
