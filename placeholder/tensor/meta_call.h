// SPDX-License-Identifier: BSD-3-Clause

// Running one op on placeholders by way of meta tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace remat {

/// How to treat tensors that LibTorch made of plain numbers.
///
/// Note [Numbers]: a Meta kernel must get such a tensor as it is, on the CPU: kernels written in
/// Python get the number itself, read from the tensor. Dry kernels get meta tensors only.
enum class Numbers : uint8_t { kKeep, kToMeta };

/// Replaces placeholders on a stack by meta tensors, and meta results by placeholders. Tensors that
/// share a storage still share one after each replacement.
class MetaCall {
 public:
  MetaCall(const c10::OperatorHandle& op, torch::jit::Stack& stack) : op_(op), stack_(stack) {}

  /// Replaces the arguments on top of the stack by meta tensors, including real ones.
  void replace_arguments(Numbers numbers);

  /// Replaces the results on top of the stack by dry tensors or, if they share storage with an
  /// argument, by placeholders on its storage. A written argument is returned as the same object,
  /// with its new geometry.
  void replace_results();

  /// True if a result, now on the stack, has a storage that no argument has.
  bool made_storage() const;

 private:
  struct Argument {
    at::Tensor original;
    at::Tensor meta;
  };
  struct StoragePair {
    c10::Storage original;  // Undefined for a real tensor.
    c10::Storage meta;
  };

  at::Tensor to_meta(const at::Tensor& tensor);
  c10::Storage meta_storage_for(const at::Tensor& tensor);
  c10::Storage meta_storage_for(const c10::Storage& storage);
  at::Tensor from_meta(const at::Tensor& meta);
  c10::Storage original_storage_for(const c10::Storage& meta);
  const StoragePair* find_pair(const c10::Storage& meta) const;
  void write_back(const Argument& argument);

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  c10::SmallVector<Argument, 4> arguments_;
  c10::SmallVector<StoragePair, 4> storages_;
};

}  // namespace remat
