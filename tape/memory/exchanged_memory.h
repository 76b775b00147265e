// SPDX-License-Identifier: BSD-3-Clause

// Tensors whose memory was exchanged through `data`.
#pragma once

#include <ATen/core/Tensor.h>

#include <remat/tape/tensor_meta.h>

namespace remat {

/// Note [Exchanged memory]: autograd keeps what an op has got as the tensor itself, so that after
/// `w.data = other` it goes on with the new memory, and tells nobody. A replay, a kept value and
/// what hooks have copied are of the old one. LibTorch's VariableHooks tell of each exchange, in
/// regions and elsewhere. So it is noted of each tensor when it was exchanged last, and whoever has
/// kept a tensor asks whether that was since. Nobody notes where it lay before: a tensor that came
/// back to its memory counts as exchanged too.
class ExchangedMemory {
 public:
  /// `tensor`, which is defined and has versions, has been given other memory. From any thread.
  static void note(const at::Tensor& tensor);

  enum class Now {
    kThere,
    kGivenUp,    // It has no elements any more; holders of a copy may use that.
    kElsewhere,  // It has other memory, or another layout in it.
  };

  /// Where the tensor is that was saved. Views of it are exchanged apart from it.
  static Now find(const SavedVersion& saved);
};

}  // namespace remat
