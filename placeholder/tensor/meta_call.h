// SPDX-License-Identifier: BSD-3-Clause

// Runs one op on placeholders, either on meta tensors in their place or by its composite kernel.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/core/Storage.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace remat {

/// How to treat tensors that LibTorch has made of number arguments, such as the 2 in x * 2.
///
/// Note [Numbers]: a Meta kernel must get a number's tensor as it is, on the CPU, because LibTorch
/// reads the number from the tensor if the kernel is written in Python. Dry kernels get meta
/// tensors only.
enum class Numbers : uint8_t { kKeep, kToMeta };

/// Replaces placeholders on a stack by meta tensors, and meta results by placeholders. Tensors that
/// share a storage still share one after each replacement.
class MetaCall {
 public:
  MetaCall(const c10::OperatorHandle& op, torch::jit::Stack& stack) : op_(op), stack_(stack) {}

  /// Replaces the arguments on top of the stack, real tensors too, by meta tensors.
  void replace_arguments(Numbers numbers);

  /// Replaces the results on top of the stack by dry tensors or, if they share storage with an
  /// argument, by placeholders on its storage. A written argument is returned as the same object,
  /// with its new geometry.
  void replace_results();

  /// True if a result, now on the stack, has a storage that no argument has.
  bool made_storage() const;

 private:
  using StoragePair = std::pair<c10::Storage, c10::Storage>;

  at::Tensor to_meta(const at::Tensor& tensor);
  c10::Storage meta_storage_for(const at::Tensor& tensor);
  c10::Storage meta_storage_for(const c10::Storage& storage);
  at::Tensor from_meta(const at::Tensor& meta);
  c10::Storage original_storage_for(const c10::Storage& meta);
  const StoragePair* find_pair(const c10::Storage& meta) const;
  void write_back(const at::Tensor& original, const at::Tensor& meta);

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  // Pairs of an original and its meta form. Real tensors' storages have no pair.
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 4> arguments_;
  c10::SmallVector<StoragePair, 4> storages_;
};

/// Runs the composite kernel of `op`, whose arguments are on `stack`; the ops inside are dispatched
/// one by one. Returns false, with the stack unchanged, if the op has no such kernel.
bool run_composite(const c10::OperatorHandle& op, torch::jit::Stack& stack);

template <class Visit>
void visit_tensors(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& element : value.toListRef())
      if (element.isTensor()) visit(element.toTensor());
  }
}

/// Calls `visit(argument index, tensor)` for each tensor among the arguments on `stack`.
template <class Visit>
void visit_argument_tensors(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                            Visit&& visit) {
  const size_t count = op.schema().arguments().size();
  const size_t first = stack.size() - count;
  for (size_t i = 0; i < count; ++i)
    visit_tensors(stack[first + i], [&](const at::Tensor& tensor) { visit(i, tensor); });
}

/// Replaces each tensor in `value` by `change(tensor)`.
template <class Change>
void change_tensors(c10::IValue& value, Change&& change) {
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> changed;
    for (const c10::IValue& element : value.toListRef())
      changed.push_back(change(element.toTensor()));
    value = std::move(changed);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const c10::IValue& element : value.toListRef()) {
      changed.push_back(element.isTensor() ? std::optional(change(element.toTensor()))
                                           : std::nullopt);
    }
    value = std::move(changed);
  }
}

}  // namespace remat
