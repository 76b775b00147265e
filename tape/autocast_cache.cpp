// SPDX-License-Identifier: BSD-3-Clause

// Telling autocast's copies of parameters from other tensors.
#include <remat/tape/autocast_cache.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace remat {
namespace {

bool is_low_precision(c10::ScalarType dtype) {
  return dtype == c10::kHalf || dtype == c10::kBFloat16;
}

}  // namespace

bool is_cacheable_cast(const OpCall& call) {
  if (!call.info().is_cast() || !call.argument(0).isTensor()) return false;
  const at::Tensor& tensor = call.argument(0).toTensor();
  const c10::IValue& dtype = call.argument(1);
  return tensor.defined() && tensor.requires_grad() && tensor.is_leaf() &&
         tensor.scalar_type() == c10::kFloat && dtype.isInt() &&
         is_low_precision(static_cast<c10::ScalarType>(dtype.toInt()));
}

at::Tensor autocast_source(const at::Tensor& tensor) {
  // A view may be stale: Note [When a view gets its node].
  if (!is_low_precision(tensor.scalar_type()) || tensor.is_view()) return {};
  const auto& cast = tensor.grad_fn();
  if (!cast || cast->num_outputs() != 1) return {};
  if (cast->name() != "ToCopyBackward0") return {};
  const auto* const leaf =
      dynamic_cast<const torch::autograd::AccumulateGrad*>(cast->next_edge(0).function.get());
  return leaf ? leaf->variable : at::Tensor();
}

}  // namespace remat
