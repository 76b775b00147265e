// SPDX-License-Identifier: BSD-3-Clause

// Kernels for indexing, searching and sampling.
#include <ATen/WrapDimUtils.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/DimVector.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "dry_kernels.h"

namespace remat {
namespace {

using at::Tensor;
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

/// The one-dimensional scan ops write values and indices of the shape of self.
void scan(const Tensor& /*self*/, Tensor& /*values*/, Tensor& /*indices*/, int64_t /*dim*/) {}

std::tuple<Tensor, Tensor> kthvalue(const Tensor& self, int64_t /*k*/, int64_t dim, bool keepdim) {
  const Tensor value = at::amax(self, dim, keepdim);
  return {value, at::empty_like(value, value.options().dtype(at::kLong))};
}

Tensor& randperm_out(int64_t n, std::optional<at::Generator> /*generator*/, Tensor& out) {
  out.resize_({n});
  return out;
}

}  // namespace

void add_index_kernels(DryKernelTable& table) {
  const auto add = kernel_adder(table);
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
