// SPDX-License-Identifier: BSD-3-Clause

// Kernels for reductions, losses, indexing, searching and sampling.
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>
#include <c10/core/Scalar.h>
#include <c10/util/DimVector.h>
#include <c10/util/OptionalArrayRef.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "dry_kernels.h"

namespace remat {
namespace {

using at::Tensor;
using Pair = std::tuple<Tensor, Tensor>;

constexpr int64_t kNoReduction = 0;

Tensor scalar_like(const Tensor& self) {
  return at::empty({}, self.options());
}

Tensor prod(const Tensor& self, std::optional<c10::ScalarType> dtype) {
  return at::sum(self, dtype);
}

Tensor nansum(const Tensor& self, c10::OptionalIntArrayRef dim, bool keepdim,
              std::optional<c10::ScalarType> dtype) {
  return at::sum(self, dim, keepdim, dtype);
}

/// Variance and standard deviation have the shape of a sum and a real dtype.
Tensor deviation(const Tensor& self, c10::OptionalIntArrayRef dim,
                 const std::optional<c10::Scalar>& /*correction*/, bool keepdim) {
  return at::sum(self, dim, keepdim, c10::toRealValueType(self.scalar_type()));
}

Pair deviation_and_mean(const Tensor& self, c10::OptionalIntArrayRef dim,
                        const std::optional<c10::Scalar>& correction, bool keepdim) {
  return {deviation(self, dim, correction, keepdim), at::mean(self, dim, keepdim)};
}

Tensor dot(const Tensor& self, const Tensor& /*other*/) {
  return scalar_like(self);
}

Pair value_and_index(const Tensor& self, int64_t dim, bool keepdim) {
  const Tensor value = at::amax(self, dim, keepdim);
  return {value, at::empty_like(value, value.options().dtype(at::kLong))};
}

Pair extremes(const Tensor& self) {
  return {scalar_like(self), scalar_like(self)};
}

Tensor count_nonzero(const Tensor& self, c10::IntArrayRef dim) {
  return at::sum(self, dim, false, at::kLong);
}

Tensor loss(const Tensor& self, int64_t reduction) {
  return reduction == kNoReduction ? at::empty_like(self) : scalar_like(self);
}

Tensor binary_cross_entropy(const Tensor& self, const Tensor& /*target*/,
                            const std::optional<Tensor>& /*weight*/, int64_t reduction) {
  return loss(self, reduction);
}

Tensor huber_loss(const Tensor& self, const Tensor& /*target*/, int64_t reduction,
                  double /*delta*/) {
  return loss(self, reduction);
}

Pair nll_loss2d(const Tensor& self, const Tensor& target, const std::optional<Tensor>& /*weight*/,
                int64_t reduction, int64_t /*ignore_index*/) {
  const Tensor result =
      reduction == kNoReduction ? at::empty(target.sizes(), self.options()) : scalar_like(self);
  return {result, scalar_like(self)};
}

using c10::IntArrayRef;

Tensor index_select(const Tensor& self, int64_t dim, const Tensor& index) {
  c10::DimVector sizes(self.sizes());
  if (!sizes.empty())
    sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, self.dim()))] = index.numel();
  return at::empty(sizes, self.options());
}

Tensor embedding_dense_backward(const Tensor& grad, const Tensor& /*indices*/, int64_t num_weights,
                                int64_t /*padding_idx*/, bool /*scale_grad_by_freq*/) {
  return at::empty({num_weights, grad.size(-1)}, grad.options());
}

Tensor take(const Tensor& self, const Tensor& index) {
  return at::empty(index.sizes(), self.options());
}

Tensor multinomial(const Tensor& self, int64_t num_samples, bool /*replacement*/,
                   std::optional<at::Generator> /*generator*/) {
  c10::DimVector sizes(self.sizes());
  sizes.back() = num_samples;
  return at::empty(sizes, self.options().dtype(at::kLong));
}

Tensor bucketize(const Tensor& self, const Tensor& /*boundaries*/, bool out_int32, bool /*right*/) {
  return at::empty_like(self, self.options().dtype(out_int32 ? at::kInt : at::kLong));
}

Tensor unfold_backward(const Tensor& grad, IntArrayRef input_sizes, int64_t /*dim*/,
                       int64_t /*size*/, int64_t /*step*/) {
  return at::empty(input_sizes, grad.options());
}

Tensor cdist(const Tensor& x1, const Tensor& x2, double /*p*/, std::optional<int64_t> /*mode*/) {
  c10::DimVector sizes(x1.sizes());
  sizes.back() = x2.size(-2);
  return at::empty(sizes, x1.options());
}

/// Does nothing, because cummax() and cummin() pass values and indices in the shape of self.
void scan(const Tensor& /*self*/, Tensor& /*values*/, Tensor& /*indices*/, int64_t /*dim*/) {}

Pair kthvalue(const Tensor& self, int64_t /*k*/, int64_t dim, bool keepdim) {
  return value_and_index(self, dim, keepdim);
}

Tensor& randperm_out(int64_t n, std::optional<at::Generator> /*generator*/, Tensor& out) {
  out.resize_({n});
  return out;
}

}  // namespace

void add_reduction_kernels(DryKernelTable& table) {
  const auto add = kernel_adder(table);
  for (const char* const name :
       {"aten::max", "aten::min", "aten::median", "aten::nanmedian", "aten::trace"}) {
    add(name, &scalar_like);
  }
  for (const char* const name : {"aten::dot", "aten::vdot"}) add(name, &dot);
  for (const char* const name : {"aten::var.correction", "aten::std.correction"})
    add(name, &deviation);
  for (const char* const name : {"aten::var_mean.correction", "aten::std_mean.correction"})
    add(name, &deviation_and_mean);
  for (const char* const name : {"aten::mode", "aten::median.dim", "aten::nanmedian.dim"})
    add(name, &value_and_index);
  add("aten::prod", &prod);
  add("aten::nansum", &nansum);
  add("aten::_aminmax", &extremes);
  add("aten::count_nonzero.dim_IntList", &count_nonzero);
  add("aten::binary_cross_entropy", &binary_cross_entropy);
  add("aten::huber_loss", &huber_loss);
  add("aten::nll_loss2d_forward", &nll_loss2d);
  add("aten::index_select", &index_select);
  add("aten::embedding_dense_backward", &embedding_dense_backward);
  add("aten::kthvalue", &kthvalue);
  add("aten::randperm.generator_out", &randperm_out);
  add("aten::take", &take);
  add("aten::multinomial", &multinomial);
  add("aten::bucketize.Tensor", &bucketize);
  add("aten::unfold_backward", &unfold_backward);
  add("aten::_cdist_forward", &cdist);
  add("aten::_cummax_helper", &scan);
  add("aten::_cummin_helper", &scan);
}

}  // namespace remat
