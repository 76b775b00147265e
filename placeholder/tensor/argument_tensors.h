// SPDX-License-Identifier: BSD-3-Clause

// Visiting all tensors among the arguments on a stack, including those in lists.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstddef>

namespace remat {

template <class Visit>
void visit_tensors(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& element : value.toListRef())
      if (element.isTensor()) visit(element.toTensor());
  }
}

/// Calls `visit(argument index, tensor)` for each tensor.
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
