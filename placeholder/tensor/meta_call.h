// SPDX-License-Identifier: BSD-3-Clause

// One op on placeholders, carried out on meta tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <cstdint>

namespace remat {

/// What becomes of tensors that LibTorch made of plain numbers.
///
/// Note [Numbers]: a Meta kernel takes one as it is, on the CPU. It must: those written in Python
/// are handed the number itself, read from the tensor. Kernels of ours have meta tensors only.
enum class Numbers : uint8_t { kKeep, kToMeta };

/// Replaces placeholders on a stack by meta tensors and meta results by placeholders. What shares a
/// storage before shares one after, both ways.
class MetaCall {
 public:
  MetaCall(const c10::OperatorHandle& op, torch::jit::Stack& stack) : op_(op), stack_(stack) {}

  /// The arguments on top of the stack become meta tensors, real ones included.
  void replace_arguments(Numbers numbers);

  /// The results on top of the stack become dry tensors, or, where they share storage with an
  /// argument, placeholders on its storage; an argument that was written is returned itself, with
  /// the geometry it has now.
  void replace_results();

  /// True if a result, now on the stack, has a storage that no argument has.
  bool made_storage() const;

 private:
  struct Argument {
    at::Tensor original;
    at::Tensor meta;
  };
  struct StoragePair {
    c10::Storage original;  // none for a real tensor
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
