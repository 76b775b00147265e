// SPDX-License-Identifier: BSD-3-Clause

// Kernels for reductions and losses.
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>
#include <c10/core/Scalar.h>
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

Tensor whole(const Tensor& self) {
  return scalar_like(self);
}

Tensor prod(const Tensor& self, std::optional<c10::ScalarType> dtype) {
  return at::sum(self, dtype);
}

Tensor nansum(const Tensor& self, c10::OptionalIntArrayRef dim, bool keepdim,
              std::optional<c10::ScalarType> dtype) {
  return at::sum(self, dim, keepdim, dtype);
}

/// Variance and standard deviation: shaped like a sum, with a real dtype.
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

}  // namespace

void add_reduction_kernels(DryKernelTable& table) {
  const auto add = kernel_adder(table);
  for (const char* const name :
       {"aten::max", "aten::min", "aten::median", "aten::nanmedian", "aten::trace"}) {
    add(name, &whole);
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
}

}  // namespace remat
