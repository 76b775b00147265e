// SPDX-License-Identifier: BSD-3-Clause

// The table of dry kernels.
#include "dry_kernels.h"

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>

#include <string_view>

#include <remat/placeholder/op_facts.h>

namespace remat {
namespace {

DryKernelTable make_table() {
  DryKernelTable table;
  add_pointwise_kernels(table);
  add_reduction_kernels(table);
  add_convolution_kernels(table);
  add_layer_kernels(table);
  add_norm_kernels(table);
  add_index_kernels(table);
  return table;
}

const DryKernelTable& table() {
  // Leaked: autograd's threads may run ops until the process ends.
  static const DryKernelTable* const made = new DryKernelTable(make_table());
  return *made;
}

const c10::KernelFunction* find(const c10::OperatorHandle& op) {
  const auto found = table().find(full_name(op));
  return found == table().end() ? nullptr : &found->second;
}

size_t count_outs(const c10::FunctionSchema& schema) {
  size_t count = 0;
  for (const c10::Argument& argument : schema.arguments()) count += argument.is_out() ? 1 : 0;
  return count;
}

/// The overload that returns what this one writes: "Tensor_out" -> "Tensor", "out" -> "".
std::string functional_overload(const std::string& overload) {
  constexpr std::string_view suffix = "_out";
  if (overload.size() <= suffix.size() || !overload.ends_with(suffix)) return {};
  return overload.substr(0, overload.size() - suffix.size());
}

std::optional<DryKernel> find_functional(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t outs = count_outs(schema);
  if (outs == 0 || op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) return std::nullopt;
  const std::string overloads[] = {functional_overload(schema.overload_name()), std::string()};
  for (const std::string& overload : overloads) {
    const auto functional = c10::Dispatcher::singleton().findSchema({schema.name(), overload});
    if (!functional || functional->schema().arguments().size() + outs != schema.arguments().size())
      continue;
    if (const c10::KernelFunction* const kernel = find(*functional))
      return DryKernel(*functional, *kernel, outs);
  }
  return std::nullopt;
}

}  // namespace

void DryKernel::call(torch::jit::Stack& stack) const {
  const torch::jit::Stack outs = torch::jit::pop(stack, outs_);
  kernel_->callBoxed(op_, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  if (outs.empty()) return;
  const torch::jit::Stack results = torch::jit::pop(stack, outs.size());
  for (size_t i = 0; i < outs.size(); ++i)
    outs[i].toTensor().resize_(results[i].toTensor().sizes());
  stack.insert(stack.end(), outs.begin(), outs.end());
}

std::optional<DryKernel> find_dry_kernel(const c10::OperatorHandle& op) {
  if (const c10::KernelFunction* const kernel = find(op)) return DryKernel(op, *kernel, 0);
  return find_functional(op);
}

}  // namespace remat
