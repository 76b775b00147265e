// SPDX-License-Identifier: BSD-3-Clause

// Kernels for batch, layer and group normalisation.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/DimVector.h>

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
using Triple = std::tuple<Tensor, Tensor, Tensor>;

/// LibTorch keeps float statistics for half-precision inputs, depending on the weights; only their
/// shape is certain here.
Triple batch_norm_results(const Tensor& input, bool training) {
  const int64_t channels = training ? input.size(1) : 0;
  return {at::empty_like(input), at::empty({channels}, input.options()),
          at::empty({channels}, input.options())};
}

Triple batch_norm(const Tensor& input, const OptionalTensor& /*weight*/,
                  const OptionalTensor& /*bias*/, const OptionalTensor& /*mean*/,
                  const OptionalTensor& /*var*/, bool training, double /*momentum*/,
                  double /*eps*/) {
  return batch_norm_results(input, training);
}

Triple batch_norm_legit(const Tensor& input, const OptionalTensor& /*weight*/,
                        const OptionalTensor& /*bias*/, const Tensor& /*mean*/,
                        const Tensor& /*var*/, bool training, double /*momentum*/, double /*eps*/) {
  return batch_norm_results(input, training);
}

Triple batch_norm_no_stats(const Tensor& input, const OptionalTensor& /*weight*/,
                           const OptionalTensor& /*bias*/, bool training, double /*momentum*/,
                           double /*eps*/) {
  return batch_norm_results(input, training);
}

Tensor channel_grad(const Tensor& input, int64_t channels, const OptionalTensor& weight) {
  const bool given = weight && weight->defined();
  return at::empty({channels}, given ? weight->options() : input.options());
}

Triple batch_norm_backward(const Tensor& /*grad*/, const Tensor& input,
                           const OptionalTensor& weight, const OptionalTensor& /*running_mean*/,
                           const OptionalTensor& /*running_var*/,
                           const OptionalTensor& /*save_mean*/,
                           const OptionalTensor& /*save_invstd*/, bool /*train*/, double /*eps*/,
                           std::array<bool, 3> mask) {
  const int64_t channels = input.size(1);
  return {mask[0] ? at::empty_like(input) : Tensor(),
          mask[1] ? channel_grad(input, channels, weight) : Tensor(),
          mask[2] ? channel_grad(input, channels, weight) : Tensor()};
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
  return {mask[0] ? at::empty_like(input) : Tensor(),
          mask[1] ? channel_grad(input, channels, weight) : Tensor(),
          mask[2] ? channel_grad(input, channels, weight) : Tensor()};
}

}  // namespace

void add_norm_kernels(DryKernelTable& table) {
  const auto add = kernel_adder(table);
  add("aten::native_batch_norm", &batch_norm);
  add("aten::_native_batch_norm_legit", &batch_norm_legit);
  add("aten::_native_batch_norm_legit.no_stats", &batch_norm_no_stats);
  add("aten::native_batch_norm_backward", &batch_norm_backward);
  add("aten::native_layer_norm", &layer_norm);
  add("aten::native_layer_norm_backward", &layer_norm_backward);
  add("aten::native_group_norm", &group_norm);
  add("aten::native_group_norm_backward", &group_norm_backward);
}

}  // namespace remat
