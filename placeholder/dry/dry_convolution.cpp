// SPDX-License-Identifier: BSD-3-Clause

// Convolutions of any number of dimensions.
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

void add_convolution_kernels(DryKernelTable& table) {
  const auto add = kernel_adder(table);
  add("aten::convolution", &convolution);
  add("aten::convolution_backward", &convolution_backward);
}

}  // namespace remat
