// SPDX-License-Identifier: BSD-3-Clause

// Tensors whose memory was exchanged through `data`.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include <remat/tape/tensor_meta.h>

namespace remat {

/// Note [Exchanged memory]: autograd keeps an op's input as the tensor itself, so after `w.data =
/// other` it silently goes on with the new memory. A replay, a kept value and copies made by hooks
/// still stand for the old memory. LibTorch's VariableHooks report each exchange, in regions and
/// elsewhere. For each exchanged tensor, remat notes where its memory was and when it left that
/// place. Whoever has kept a tensor asks whether it has left the memory that it had at the time.
/// The tensor may have come back, as FSDP's weights do.
///
/// An instance spans one exchange of the memory of a defined tensor; call finish() afterwards.
/// Usable from any thread.
class ExchangedMemory {
 public:
  explicit ExchangedMemory(const at::Tensor& tensor);
  ~ExchangedMemory();
  ExchangedMemory(const ExchangedMemory&) = delete;
  ExchangedMemory& operator=(const ExchangedMemory&) = delete;

  void finish(const at::Tensor& tensor);

  enum class Now {
    kThere,
    kGivenUp,    // It has no elements any more; holders of a copy may use that.
    kElsewhere,  // It has other memory, or another layout in it.
  };

  /// Finds out where the saved tensor is now. Each view of it has a position of its own.
  static Now find(const SavedVersion& saved);

  struct Place;

 private:
  std::unique_ptr<Place> before_;
};

}  // namespace remat
