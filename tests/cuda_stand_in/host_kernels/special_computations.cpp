// SPDX-License-Identifier: BSD-3-Clause

// Ops that the CPU has no kernel for, or a kernel that takes other arguments than CUDA's.
#include <ATen/ATen.h>

#include <initializer_list>
#include <string>
#include <unordered_map>
#include <vector>

#include "host_computation.h"

namespace cuda_stand_in {
namespace {

using at::Tensor;
using c10::OperatorHandle;
using torch::jit::Stack;

Tensor optional_tensor(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor() : Tensor();
}

Tensor or_zeros(const Tensor& tensor, const Tensor& like) {
  return tensor.defined() ? tensor : at::zeros_like(like);
}

Tensor sum_of(const Stack& stack, std::initializer_list<size_t> terms) {
  Tensor sum;
  for (const size_t i : terms) {
    const Tensor term = optional_tensor(stack[i]);
    if (term.defined()) sum = sum.defined() ? sum + term : term;
  }
  return sum;
}

// The CPU's kernel draws from the default generator.
void native_dropout(const OperatorHandle& /*op*/, Stack& stack, const at::Generator& generator) {
  const Tensor input = stack[0].toTensor();
  const double p = stack[1].toDouble();
  if (!stack[2].isNone() && !stack[2].toBool()) {
    stack = {input.clone(), at::ones_like(input, at::kBool)};
    return;
  }
  const double scale = p == 1 ? 0. : 1. / (1. - p);
  const Tensor mask = at::empty_like(input, at::kBool).bernoulli_(1. - p, generator);
  stack = {input.mul(mask).mul_(scale), mask};
}

// CUDA's softmax converts half to float on the way; that of the CPU refuses.
void softmax(const OperatorHandle& op, Stack& stack, const at::Generator& /*generator*/) {
  if (stack[2].toBool()) {
    stack[0] = stack[0].toTensor().to(at::kFloat);
    stack[2] = false;
  }
  op.callBoxed(&stack);
}

void softmax_backward(const OperatorHandle& op, Stack& stack, const at::Generator& /*generator*/) {
  const at::ScalarType input = stack[3].toScalarType();
  stack[3] = stack[0].toTensor().scalar_type();
  op.callBoxed(&stack);
  stack[0] = stack[0].toTensor().to(input);
}

// Arguments: input_gates, hidden_gates, cx, input_bias, hidden_bias. Results: hy, cy, workspace.
void lstm_cell(const OperatorHandle& /*op*/, Stack& stack, const at::Generator& /*generator*/) {
  const Tensor cx = stack[2].toTensor();
  std::vector<Tensor> gates = sum_of(stack, {0, 3, 1, 4}).chunk(4, 1);
  for (const size_t i : {0, 1, 3}) gates[i] = gates[i].sigmoid();
  gates[2] = gates[2].tanh();
  const Tensor cy = gates[1] * cx + gates[0] * gates[2];
  stack = {gates[3] * cy.tanh(), cy, at::cat(gates, 1)};
}

// Arguments: grad_hy, grad_cy, cx, cy, workspace, has_bias. Results: grad_gates, grad_cx,
// grad_bias.
void lstm_cell_backward(const OperatorHandle& /*op*/, Stack& stack,
                        const at::Generator& /*generator*/) {
  const Tensor cx = stack[2].toTensor();
  const Tensor tanh_cy = stack[3].toTensor().tanh();
  const std::vector<Tensor> gates = stack[4].toTensor().chunk(4, 1);
  const Tensor grad_hy = or_zeros(optional_tensor(stack[0]), cx);
  const Tensor grad_cell =
      grad_hy * gates[3] * (1 - tanh_cy * tanh_cy) + or_zeros(optional_tensor(stack[1]), cx);
  const auto sigmoid_grad = [](const Tensor& gate) { return (1 - gate) * gate; };
  const Tensor grad_gates = at::cat(
      {grad_cell * gates[2] * sigmoid_grad(gates[0]), grad_cell * cx * sigmoid_grad(gates[1]),
       grad_cell * gates[0] * (1 - gates[2] * gates[2]),
       grad_hy * tanh_cy * sigmoid_grad(gates[3])},
      1);
  const bool has_bias = stack[5].toBool();
  stack = {grad_gates, grad_cell * gates[1], has_bias ? grad_gates.sum(0) : Tensor()};
}

// Arguments: input_gates, hidden_gates, hx, input_bias, hidden_bias. Results: hy, and the
// workspace of reset gate, input gate, new gate, hx, and the hidden part of the new gate.
void gru_cell(const OperatorHandle& /*op*/, Stack& stack, const at::Generator& /*generator*/) {
  const Tensor hx = stack[2].toTensor();
  const std::vector<Tensor> input = sum_of(stack, {0, 3}).chunk(3, 1);
  const std::vector<Tensor> hidden = sum_of(stack, {1, 4}).chunk(3, 1);
  const Tensor reset = (input[0] + hidden[0]).sigmoid();
  const Tensor update = (input[1] + hidden[1]).sigmoid();
  const Tensor fresh = (input[2] + reset * hidden[2]).tanh();
  stack = {fresh + update * (hx - fresh), at::cat({reset, update, fresh, hx, hidden[2]}, 1)};
}

// Arguments: grad_hy, workspace, has_bias. Results: grad_input_gates, grad_hidden_gates, grad_hx,
// grad_input_bias, grad_hidden_bias.
void gru_cell_backward(const OperatorHandle& /*op*/, Stack& stack,
                       const at::Generator& /*generator*/) {
  const Tensor grad = stack[0].toTensor();
  const std::vector<Tensor> saved = stack[1].toTensor().chunk(5, 1);
  const Tensor &reset = saved[0], &update = saved[1], &fresh = saved[2];
  const Tensor grad_update = grad * (saved[3] - fresh) * (1 - update) * update;
  const Tensor grad_fresh = grad * (1 - update) * (1 - fresh * fresh);
  const Tensor grad_reset = grad_fresh * saved[4] * (1 - reset) * reset;
  const Tensor grad_input = at::cat({grad_reset, grad_update, grad_fresh}, 1);
  const Tensor grad_hidden = at::cat({grad_reset, grad_update, grad_fresh * reset}, 1);
  const bool has_bias = stack[2].toBool();
  stack = {grad_input, grad_hidden, grad * update, has_bias ? grad_input.sum(0) : Tensor(),
           has_bias ? grad_hidden.sum(0) : Tensor()};
}

// Arguments: grad_out, input, normalized_shape, rstd, weight, output_mask. Results: grad_input,
// grad_weight.
void rms_norm_backward(const OperatorHandle& /*op*/, Stack& stack,
                       const at::Generator& /*generator*/) {
  const Tensor grad = stack[0].toTensor(), input = stack[1].toTensor(), rstd = stack[3].toTensor();
  const auto dims = static_cast<int64_t>(stack[2].toIntVector().size());
  const Tensor weight = optional_tensor(stack[4]);
  const c10::List<bool> mask = stack[5].toBoolList();
  std::vector<int64_t> inner, outer;
  for (int64_t i = 0; i < input.dim(); ++i) (i < input.dim() - dims ? outer : inner).push_back(i);
  const Tensor normal = input * rstd;
  const Tensor scaled = weight.defined() ? grad * weight : grad;
  Tensor grad_input, grad_weight;
  if (mask.get(0)) grad_input = (scaled - normal * (scaled * normal).mean(inner, true)) * rstd;
  if (mask.get(1) && weight.defined()) {
    grad_weight = grad * normal;
    if (!outer.empty()) grad_weight = grad_weight.sum(outer);
  }
  stack = {grad_input, grad_weight};
}

// CUDA keeps no buffer for the backward.
void log_sigmoid_backward(const OperatorHandle& op, Stack& stack,
                          const at::Generator& /*generator*/) {
  stack[2] = std::get<1>(at::log_sigmoid_forward(stack[1].toTensor()));
  op.callBoxed(&stack);
}

// Arguments: input, weight, bias, running_mean, running_var, training, momentum, eps. Outside of
// training, CUDA returns the statistics that it has used, and the CPU returns none.
void batch_norm(const OperatorHandle& op, Stack& stack, const at::Generator& /*generator*/) {
  const Tensor mean = optional_tensor(stack[3]), variance = optional_tensor(stack[4]);
  const bool is_training = stack[5].toBool();
  const double eps = stack[7].toDouble();
  op.callBoxed(&stack);
  if (is_training) return;
  stack[1] = mean;
  stack[2] = (variance + eps).rsqrt();
}

// Arguments: weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
// include_last_offset, padding_idx. Results: output, offset2bag, bag_size, maximum_indices. The CPU
// leaves the second and third empty if its own backward does not need them; CUDA's always does.
void embedding_bag(const OperatorHandle& op, Stack& stack, const at::Generator& /*generator*/) {
  const Tensor offsets = stack[2].toTensor();
  const int64_t count = stack[1].toTensor().numel();
  const Tensor bags = stack[7].toBool() ? offsets.slice(0, 0, -1) : offsets;
  op.callBoxed(&stack);
  const Tensor starts =
      at::zeros({count + 1}, offsets.options()).index_add_(0, bags, at::ones_like(bags));
  stack[1] = (starts.cumsum(0) - 1).narrow(0, 0, count).to(offsets.scalar_type());
  if (stack[2].toTensor().numel() != offsets.numel()) {
    const Tensor end = at::full({1}, count, offsets.options());
    stack[2] = at::cat({bags.slice(0, 1), end}) - bags;
  }
}

/// A product whose result has the type that argument `kType` names.
template <size_t kType>
void product_of_type(const OperatorHandle& op, Stack& stack, const at::Generator& /*generator*/) {
  const at::ScalarType type = stack[kType].toScalarType();
  for (c10::IValue& value : stack)
    if (value.isTensor()) value = value.toTensor().to(type);
  stack.erase(stack.begin() + kType);
  const auto plain =
      c10::Dispatcher::singleton().findSchemaOrThrow(op.operator_name().name.c_str(), "");
  plain.callBoxed(&stack);
}

}  // namespace

HostComputation special_computation(const c10::OperatorName& name) {
  static const std::unordered_map<std::string, HostComputation> functions = {
      {"aten::native_dropout", native_dropout},
      {"aten::_softmax", softmax},
      {"aten::_log_softmax", softmax},
      {"aten::_softmax_backward_data", softmax_backward},
      {"aten::_log_softmax_backward_data", softmax_backward},
      {"aten::_thnn_fused_lstm_cell", lstm_cell},
      {"aten::_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward},
      {"aten::_thnn_fused_gru_cell", gru_cell},
      {"aten::_thnn_fused_gru_cell_backward", gru_cell_backward},
      {"aten::_fused_rms_norm_backward", rms_norm_backward},
      {"aten::_embedding_bag", embedding_bag},
      {"aten::_embedding_bag_forward_only", embedding_bag},
      {"aten::log_sigmoid_backward", log_sigmoid_backward},
      {"aten::native_batch_norm", batch_norm},
      {"aten::_native_batch_norm_legit", batch_norm},
      {"aten::mm.dtype", product_of_type<2>},
      {"aten::bmm.dtype", product_of_type<2>},
      {"aten::addmm.dtype", product_of_type<3>},
      {"aten::baddbmm.dtype", product_of_type<3>},
  };
  const auto found = functions.find(toString(name));
  return found == functions.end() ? nullptr : found->second;
}

}  // namespace cuda_stand_in
