// SPDX-License-Identifier: BSD-3-Clause

// Tensors that have been given other memory by way of `data`.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include <remat/tape/tensor_meta.h>

namespace remat {

/// Note [Exchanged memory]: autograd keeps what an op has got as the tensor itself, so that after
/// `w.data = other` it goes on with the new memory, and tells nobody. A replay, a kept value and
/// what hooks have copied are of the old one. LibTorch's VariableHooks tell of each exchange, in
/// regions and elsewhere. So it is noted of each tensor that was exchanged where it has lain, and
/// when it left that place. Whoever has kept a tensor asks whether it has left the memory that it
/// had then. It may have come back, as FSDP's weights do.
///
/// While alive, a tensor, which is defined, is given other memory; finish() once it has. From any
/// thread.
class ExchangedMemory {
 public:
  explicit ExchangedMemory(const at::Tensor& tensor);
  ~ExchangedMemory();
  ExchangedMemory(const ExchangedMemory&) = delete;
  ExchangedMemory& operator=(const ExchangedMemory&) = delete;

  void finish(const at::Tensor& tensor);

  enum class Now {
    kThere,
    kGivenUp,    // it has no elements any more: who has copied it may go on with the copy
    kElsewhere,  // or in another way
  };

  /// Where the tensor is that was saved. Views of it have a place of their own.
  static Now find(const SavedVersion& saved);

  struct Place;

 private:
  std::unique_ptr<Place> before_;
};

}  // namespace remat
