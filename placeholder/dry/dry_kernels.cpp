// SPDX-License-Identifier: BSD-3-Clause

// The table of dry kernels, and the kernels whose results have the shape of one argument, or of
// arguments broadcast together.
#include "dry_kernels.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <c10/core/DispatchKeySet.h>

#include <cstddef>
#include <initializer_list>
#include <string_view>
#include <tuple>
#include <utility>

#include <remat/placeholder/op_facts.h>

namespace remat {
namespace {

DryKernelTable make_kernel_table() {
  DryKernelTable table;
  add_pointwise_kernels(table);
  add_reduction_kernels(table);
  add_layer_kernels(table);
  return table;
}

const DryKernelTable& table() {
  // Leaked, because autograd's threads may run ops until the process ends.
  static const DryKernelTable* const made = new DryKernelTable(make_kernel_table());
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

/// The overload that returns what `overload` writes: "Tensor_out" -> "Tensor", "out" -> "".
std::string functional_overload(const std::string& overload) {
  constexpr std::string_view suffix = "_out";
  if (overload.size() <= suffix.size() || !overload.ends_with(suffix)) return {};
  return overload.substr(0, overload.size() - suffix.size());
}

/// Runs `kernel`, which returns results, for `op`, which writes them to its last `outs` arguments.
void call_functional(const c10::OperatorHandle& op, const c10::KernelFunction& kernel, size_t outs,
                     torch::jit::Stack& stack) {
  const torch::jit::Stack written = torch::jit::pop(stack, outs);
  kernel.callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  const torch::jit::Stack results = torch::jit::pop(stack, outs);
  for (size_t i = 0; i < outs; ++i) written[i].toTensor().resize_(results[i].toTensor().sizes());
  stack.insert(stack.end(), written.begin(), written.end());
}

DryKernel find_functional(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const size_t outs = count_outs(schema);
  if (outs == 0 || op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) return nullptr;
  const std::string overloads[] = {functional_overload(schema.overload_name()), std::string()};
  for (const std::string& overload : overloads) {
    const auto functional = c10::Dispatcher::singleton().findSchema({schema.name(), overload});
    if (!functional || functional->schema().arguments().size() + outs != schema.arguments().size())
      continue;
    if (const c10::KernelFunction* const kernel = find(*functional)) {
      return [op = *functional, kernel, outs](torch::jit::Stack& stack) {
        call_functional(op, *kernel, outs, stack);
      };
    }
  }
  return nullptr;
}

using c10::KernelFunction;
using torch::jit::Stack;

void replace_arguments(const c10::OperatorHandle& op, Stack& stack, at::Tensor result) {
  torch::jit::drop(stack, op.schema().arguments().size());
  stack.emplace_back(std::move(result));
}

template <size_t index>
void like_argument(const c10::OperatorHandle& op, Stack* stack) {
  const at::Tensor like =
      torch::jit::peek(*stack, index, op.schema().arguments().size()).toTensor();
  replace_arguments(op, *stack, at::empty_like(like));
}

/// Lets a check of values pass, because dry tensors have no values.
void pass_check(const c10::OperatorHandle& op, Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

/// Returns the first two tensor arguments broadcast together, with the promoted dtype.
void broadcast(const c10::OperatorHandle& op, Stack* stack) {
  at::Tensor first;
  at::Tensor second;
  const size_t count = op.schema().arguments().size();
  for (size_t i = 0; i < count; ++i) {
    const c10::IValue& value = torch::jit::peek(*stack, i, count);
    if (!value.isTensor()) continue;
    (first.defined() ? second : first) = value.toTensor();
    if (second.defined()) break;
  }
  if (!second.defined()) return replace_arguments(op, *stack, at::empty_like(first));
  const auto sizes = at::infer_size_dimvector(first.sizes(), second.sizes());
  const auto options = first.options().dtype(at::result_type(first, second));
  replace_arguments(op, *stack, at::empty(sizes, options));
}

at::Tensor where(const at::Tensor& condition, const at::Tensor& self, const at::Tensor& other) {
  const auto values = at::infer_size_dimvector(self.sizes(), other.sizes());
  const auto sizes = at::infer_size_dimvector(condition.sizes(), values);
  return at::empty(sizes, self.options().dtype(at::result_type(self, other)));
}

at::Tensor truth(const at::Tensor& self) {
  return at::empty_like(self, self.options().dtype(at::kBool));
}

/// The magnitude of a complex number is real.
at::Tensor abs(const at::Tensor& self) {
  return at::empty_like(self, self.options().dtype(c10::toRealValueType(self.scalar_type())));
}

at::Tensor complex(const at::Tensor& real, const at::Tensor& imag) {
  const auto sizes = at::infer_size_dimvector(real.sizes(), imag.sizes());
  return at::empty(sizes, real.options().dtype(c10::toComplexType(real.scalar_type())));
}

at::Tensor logical(const at::Tensor& self, const at::Tensor& other) {
  const auto sizes = at::infer_size_dimvector(self.sizes(), other.sizes());
  return at::empty(sizes, self.options().dtype(at::kBool));
}

at::Tensor angle(const at::Tensor& self) {
  const bool integral = c10::isIntegralType(self.scalar_type(), /*includeBool=*/true);
  const auto dtype = integral ? at::kFloat : c10::toRealValueType(self.scalar_type());
  return at::empty_like(self, self.options().dtype(dtype));
}

std::tuple<at::Tensor, at::Tensor> log_sigmoid_forward(const at::Tensor& self) {
  return {at::empty_like(self), at::empty({0}, self.options())};
}

std::tuple<at::Tensor, at::Tensor> prelu_backward(const at::Tensor& /*grad*/,
                                                  const at::Tensor& self,
                                                  const at::Tensor& weight) {
  // Autograd sums the second result to the weight's shape.
  const auto sizes = at::infer_size_dimvector(self.sizes(), weight.sizes());
  return {at::empty_like(self), at::empty(sizes, weight.options())};
}

}  // namespace

DryKernel find_dry_kernel(const c10::OperatorHandle& op) {
  const c10::KernelFunction* const kernel = find(op);
  if (!kernel) return find_functional(op);
  return [op, kernel](torch::jit::Stack& stack) {
    kernel->callBoxed(op, c10::DispatchKeySet(c10::DispatchKey::Meta), &stack);
  };
}

void add_pointwise_kernels(DryKernelTable& table) {
  const auto add_all = [&table](std::initializer_list<std::string_view> names,
                                const KernelFunction& kernel) {
    for (const std::string_view name : names) table.emplace(name, kernel);
  };
  add_all({"aten::relu",
           "aten::hardswish",
           "aten::hardtanh",
           "aten::logit",
           "aten::flip",
           "aten::roll",
           "aten::channel_shuffle",
           "aten::_logcumsumexp",
           "aten::poisson",
           "aten::_standard_gamma",
           "aten::_sample_dirichlet",
           "aten::linalg_matrix_exp",
           "aten::cholesky",
           "aten::cholesky_inverse",
           "aten::_masked_softmax",
           "aten::native_dropout_backward",
           "aten::conj_physical",
           "aten::_conj_physical",
           "aten::nan_to_num",
           "aten::mvlgamma",
           "aten::bernoulli",
           "aten::_fft_c2c",
           "aten::_masked_softmax_backward"},
          KernelFunction::makeFromBoxedFunction<&like_argument<0>>());
  add_all({"aten::hardswish_backward", "aten::hardtanh_backward", "aten::log_sigmoid_backward",
           "aten::glu_backward", "aten::_adaptive_avg_pool2d_backward",
           "aten::_adaptive_avg_pool3d_backward", "aten::max_pool3d_with_indices_backward",
           "aten::reflection_pad2d_backward", "aten::replication_pad2d_backward",
           "aten::replication_pad3d_backward", "aten::nll_loss2d_backward",
           "aten::binary_cross_entropy_backward", "aten::mse_loss_backward",
           "aten::multi_margin_loss_backward", "aten::multilabel_margin_loss_backward",
           "aten::huber_loss_backward", "aten::smooth_l1_loss_backward",
           "aten::linalg_solve_triangular", "aten::_cdist_backward"},
          KernelFunction::makeFromBoxedFunction<&like_argument<1>>());
  add_all({"aten::floor_divide", "aten::rsub.Tensor", "aten::remainder.Scalar_Tensor",
           "aten::_prelu_kernel", "aten::__lshift__.Tensor", "aten::__rshift__.Tensor",
           "aten::__lshift__.Scalar", "aten::__rshift__.Scalar", "aten::_add_relu.Tensor"},
          KernelFunction::makeFromBoxedFunction<&broadcast>());
  add_all({"aten::_linalg_check_errors", "aten::_assert_async", "aten::_assert_async.msg"},
          KernelFunction::makeFromBoxedFunction<&pass_check>());
  const auto add = kernel_adder(table);
  add("aten::where.self", &where);
  add("aten::isnan", &truth);
  add("aten::logical_not", &truth);
  add("aten::logical_and", &logical);
  add("aten::logical_or", &logical);
  add("aten::logical_xor", &logical);
  add("aten::abs", &abs);
  add("aten::angle", &angle);
  add("aten::complex", &complex);
  add("aten::polar", &complex);
  add("aten::log_sigmoid_forward", &log_sigmoid_forward);
  add("aten::_prelu_kernel_backward", &prelu_backward);
}

}  // namespace remat
