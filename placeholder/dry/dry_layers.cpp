// SPDX-License-Identifier: BSD-3-Clause

// Kernels of layers: convolution, normalisation, dropout, recurrent cells, pooling, padding, and
// Fourier transforms.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/DimVector.h>
#include <c10/util/Exception.h>
#include <c10/util/OptionalArrayRef.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>

#include "dry_kernels.h"

namespace remat {
namespace {

using at::Tensor;
using c10::IntArrayRef;
using OptionalTensor = std::optional<Tensor>;
using Pair = std::tuple<Tensor, Tensor>;
using Triple = std::tuple<Tensor, Tensor, Tensor>;

Pair dropout(const Tensor& input, double /*p*/, std::optional<bool> /*train*/) {
  return {at::empty_like(input), at::empty_like(input, input.options().dtype(at::kBool))};
}

Triple lstm_cell(const Tensor& input_gates, const Tensor& /*hidden_gates*/, const Tensor& cx,
                 const OptionalTensor& /*input_bias*/, const OptionalTensor& /*hidden_bias*/) {
  return {at::empty_like(cx), at::empty_like(cx), at::empty_like(input_gates)};
}

/// The workspace holds the gates: [batch, 4 * hidden].
Triple lstm_cell_backward(const OptionalTensor& /*grad_hy*/, const OptionalTensor& /*grad_cy*/,
                          const Tensor& cx, const Tensor& /*cy*/, const Tensor& workspace,
                          bool has_bias) {
  return {at::empty_like(workspace), at::empty_like(cx),
          has_bias ? at::empty({workspace.size(1)}, workspace.options()) : Tensor()};
}

Pair gru_cell(const Tensor& /*input_gates*/, const Tensor& /*hidden_gates*/, const Tensor& hx,
              const OptionalTensor& /*input_bias*/, const OptionalTensor& /*hidden_bias*/) {
  return {at::empty_like(hx), at::empty({hx.size(0), hx.size(1) * 5}, hx.options())};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& grad,
                                                                     const Tensor& /*workspace*/,
                                                                     bool has_bias) {
  const int64_t gates = grad.size(1) * 3;
  const auto gate_grad = [&] { return at::empty({grad.size(0), gates}, grad.options()); };
  const auto bias_grad = [&] { return has_bias ? at::empty({gates}, grad.options()) : Tensor(); };
  return {gate_grad(), gate_grad(), at::empty_like(grad), bias_grad(), bias_grad()};
}

Tensor with_last_sizes(const Tensor& self, IntArrayRef last) {
  c10::DimVector sizes(self.sizes());
  const size_t first = sizes.size() - last.size();
  for (size_t i = 0; i < last.size(); ++i) sizes[first + i] = last[i];
  return at::empty(sizes, self.options());
}

/// `padding` has pairs, starting from the last dimension.
Tensor pad(const Tensor& self, IntArrayRef padding) {
  c10::DimVector sizes(self.sizes());
  for (size_t i = 0; i < padding.size() / 2; ++i)
    sizes[sizes.size() - 1 - i] += padding[2 * i] + padding[2 * i + 1];
  return at::empty(sizes, self.options());
}

Tensor grid_sampler(const Tensor& input, const Tensor& grid, int64_t /*interpolation*/,
                    int64_t /*padding*/, bool /*align_corners*/) {
  c10::DimVector sizes = {input.size(0), input.size(1)};
  for (int64_t dim = 1; dim + 1 < grid.dim(); ++dim) sizes.push_back(grid.size(dim));
  return at::empty(sizes, input.options());
}

Pair grid_sampler_backward(const Tensor& /*grad*/, const Tensor& input, const Tensor& grid,
                           int64_t /*interpolation*/, int64_t /*padding*/, bool /*align_corners*/,
                           std::array<bool, 2> mask) {
  return {mask[0] ? at::empty_like(input) : Tensor(), mask[1] ? at::empty_like(grid) : Tensor()};
}

Tensor fft_r2c(const Tensor& self, IntArrayRef dim, int64_t /*normalization*/, bool onesided) {
  c10::DimVector sizes(self.sizes());
  if (onesided) {
    int64_t& last =
        sizes[static_cast<size_t>(dim.back() < 0 ? dim.back() + self.dim() : dim.back())];
    last = last / 2 + 1;
  }
  return at::empty(sizes, self.options().dtype(c10::toComplexType(self.scalar_type())));
}

Tensor fft_c2r(const Tensor& self, IntArrayRef dim, int64_t /*normalization*/, int64_t last_size) {
  c10::DimVector sizes(self.sizes());
  sizes[static_cast<size_t>(dim.back() < 0 ? dim.back() + self.dim() : dim.back())] = last_size;
  return at::empty(sizes, self.options().dtype(c10::toRealValueType(self.scalar_type())));
}

Pair weight_norm(const Tensor& v, const Tensor& g, int64_t /*dim*/) {
  return {at::empty_like(v), at::empty_like(g)};
}

Pair weight_norm_backward(const Tensor& /*grad*/, const Tensor& v, const Tensor& g,
                          const Tensor& /*norms*/, int64_t /*dim*/) {
  return {at::empty_like(v), at::empty_like(g)};
}

/// Only the shape of the statistics is certain here, because for half-precision inputs their dtype
/// is float or not, depending on the weights.
template <class... Statistics>
Triple batch_norm(const Tensor& input, const OptionalTensor& /*weight*/,
                  const OptionalTensor& /*bias*/, Statistics... /*running*/, bool training,
                  double /*momentum*/, double /*eps*/) {
  const int64_t channels = training ? input.size(1) : 0;
  return {at::empty_like(input), at::empty({channels}, input.options()),
          at::empty({channels}, input.options())};
}

/// Gradients of an input, and of a weight and a bias with a number per channel.
Triple channel_grads(const Tensor& input, int64_t channels, const OptionalTensor& weight,
                     std::array<bool, 3> mask) {
  const auto options = weight && weight->defined() ? weight->options() : input.options();
  return {mask[0] ? at::empty_like(input) : Tensor(),
          mask[1] ? at::empty({channels}, options) : Tensor(),
          mask[2] ? at::empty({channels}, options) : Tensor()};
}

Triple batch_norm_backward(const Tensor& /*grad*/, const Tensor& input,
                           const OptionalTensor& weight, const OptionalTensor& /*running_mean*/,
                           const OptionalTensor& /*running_var*/,
                           const OptionalTensor& /*save_mean*/,
                           const OptionalTensor& /*save_invstd*/, bool /*train*/, double /*eps*/,
                           std::array<bool, 3> mask) {
  return channel_grads(input, input.size(1), weight, mask);
}

Triple layer_norm(const Tensor& input, IntArrayRef normalized, const OptionalTensor& /*weight*/,
                  const OptionalTensor& /*bias*/, double /*eps*/) {
  c10::DimVector sizes(input.sizes());
  for (size_t i = sizes.size() - normalized.size(); i < sizes.size(); ++i) sizes[i] = 1;
  return {at::empty(input.sizes(), input.options()), at::empty(sizes, input.options()),
          at::empty(sizes, input.options())};
}

Triple layer_norm_backward(const Tensor& /*grad*/, const Tensor& input, IntArrayRef /*normalized*/,
                           const Tensor& /*mean*/, const Tensor& /*rstd*/,
                           const OptionalTensor& weight, const OptionalTensor& bias,
                           std::array<bool, 3> mask) {
  const auto like = [](const OptionalTensor& parameter) {
    return parameter && parameter->defined() ? at::empty_like(*parameter) : Tensor();
  };
  return {mask[0] ? at::empty_like(input) : Tensor(), mask[1] ? like(weight) : Tensor(),
          mask[2] ? like(bias) : Tensor()};
}

Triple group_norm(const Tensor& input, const OptionalTensor& /*weight*/,
                  const OptionalTensor& /*bias*/, int64_t batch, int64_t /*channels*/,
                  int64_t /*pixels*/, int64_t groups, double /*eps*/) {
  return {at::empty_like(input), at::empty({batch, groups}, input.options()),
          at::empty({batch, groups}, input.options())};
}

Triple group_norm_backward(const Tensor& /*grad*/, const Tensor& input, const Tensor& /*mean*/,
                           const Tensor& /*rstd*/, const OptionalTensor& weight, int64_t /*batch*/,
                           int64_t channels, int64_t /*pixels*/, int64_t /*groups*/,
                           std::array<bool, 3> mask) {
  return channel_grads(input, channels, weight, mask);
}

int64_t at_or_last(IntArrayRef values, size_t index) {
  return index < values.size() ? values[index] : values.back();
}

/// Sizes as in LibTorch's documentation of ConvNd and ConvTransposeNd.
Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& /*bias*/,
                   IntArrayRef stride, IntArrayRef padding, IntArrayRef dilation, bool transposed,
                   IntArrayRef output_padding, int64_t groups) {
  const int64_t channels = weight.size(transposed ? 0 : 1) * (transposed ? 1 : groups);
  TORCH_CHECK_VALUE(input.dim() == weight.dim() && input.size(1) == channels,
                    "[placeholder] aten::convolution: expected an input with ", channels,
                    " channels and ", weight.dim(), " dimensions, got ", input.sizes(),
                    ". Check the layer's sizes.");
  c10::DimVector sizes = {input.size(0), transposed ? weight.size(1) * groups : weight.size(0)};
  for (int64_t dim = 2; dim < input.dim(); ++dim) {
    const auto i = static_cast<size_t>(dim - 2);
    const int64_t reach = at_or_last(dilation, i) * (weight.size(dim) - 1) + 1;
    const int64_t step = at_or_last(stride, i);
    const int64_t pad = 2 * at_or_last(padding, i);
    sizes.push_back(transposed
                        ? (input.size(dim) - 1) * step - pad + reach + at_or_last(output_padding, i)
                        : (input.size(dim) + pad - reach) / step + 1);
    TORCH_CHECK_VALUE(sizes.back() >= 0 && input.size(dim) + pad >= (transposed ? 0 : reach),
                      "[placeholder] aten::convolution: expected a kernel that fits, got input ",
                      input.sizes(), " and kernel ", weight.sizes(), ". Check the layer's sizes.");
  }
  return at::empty(sizes, input.options());
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad, const Tensor& input, const Tensor& weight,
    c10::OptionalIntArrayRef /*bias_sizes*/, IntArrayRef /*stride*/, IntArrayRef /*padding*/,
    IntArrayRef /*dilation*/, bool transposed, IntArrayRef /*output_padding*/, int64_t groups,
    std::array<bool, 3> mask) {
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  return {mask[0] ? at::empty_like(input) : Tensor(), mask[1] ? at::empty_like(weight) : Tensor(),
          mask[2] ? at::empty({channels}, grad.options()) : Tensor()};
}

}  // namespace

void add_layer_kernels(DryKernelTable& table) {
  const auto add = kernel_adder(table);
  add("aten::native_dropout", &dropout);
  add("aten::_thnn_fused_lstm_cell", &lstm_cell);
  add("aten::_thnn_fused_lstm_cell_backward_impl", &lstm_cell_backward);
  add("aten::_thnn_fused_gru_cell", &gru_cell);
  add("aten::_thnn_fused_gru_cell_backward", &gru_cell_backward);
  add("aten::_adaptive_avg_pool2d", &with_last_sizes);
  add("aten::_adaptive_avg_pool3d", &with_last_sizes);
  add("aten::reflection_pad2d", &pad);
  add("aten::grid_sampler_2d", &grid_sampler);
  add("aten::grid_sampler_3d", &grid_sampler);
  add("aten::grid_sampler_2d_backward", &grid_sampler_backward);
  add("aten::grid_sampler_3d_backward", &grid_sampler_backward);
  add("aten::_fft_r2c", &fft_r2c);
  add("aten::_fft_c2r", &fft_c2r);
  add("aten::_weight_norm_interface", &weight_norm);
  add("aten::_weight_norm_interface_backward", &weight_norm_backward);
  add("aten::native_batch_norm", &batch_norm<const OptionalTensor&, const OptionalTensor&>);
  add("aten::_native_batch_norm_legit", &batch_norm<const Tensor&, const Tensor&>);
  add("aten::_native_batch_norm_legit.no_stats", &batch_norm<>);
  add("aten::native_batch_norm_backward", &batch_norm_backward);
  add("aten::native_layer_norm", &layer_norm);
  add("aten::native_layer_norm_backward", &layer_norm_backward);
  add("aten::native_group_norm", &group_norm);
  add("aten::native_group_norm_backward", &group_norm_backward);
  add("aten::convolution", &convolution);
  add("aten::convolution_backward", &convolution_backward);
}

}  // namespace remat
