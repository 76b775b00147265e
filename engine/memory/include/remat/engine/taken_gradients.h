// SPDX-License-Identifier: BSD-3-Clause

// Gradients that are the saved tensors of custom functions.
#pragma once

#include <ATen/core/Tensor.h>

namespace remat {

/// Note [Gradients that are saved tensors]: the backward of a custom function may return a saved
/// tensor as a gradient. AccumulateGrad makes that tensor a leaf's .grad, without a copy, if nobody
/// else has the tensor. In plain code the function's caller may have it, so AccumulateGrad copies.
/// Unpack hooks return a tensor that nobody else has, but its memory may belong to others: an
/// argument, a weight, a kept result. A write to the .grad would then change the memory of others.
/// So remat notes which memory a custom function's node gets, and the leaves behind the node. When
/// the thread's next node gets a saved tensor, or the backward ends, a .grad on that memory is
/// replaced by a copy if others have the memory, and otherwise gets its own version counter.
///
/// Notes that the running node, if there is one, gets `value`, one of its saved tensors. Usable
/// from any thread, in a backward or outside.
void note_given_to_node(const at::Tensor& value);

}  // namespace remat
