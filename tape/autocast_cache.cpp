// SPDX-License-Identifier: BSD-3-Clause

// Telling autocast's copies of parameters from other tensors.
#include "autocast_cache.h"

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace remat {
namespace {

bool autocast_is_on(const at::Tensor& tensor) {
  return at::autocast::is_autocast_available(tensor.device().type()) &&
         at::autocast::is_autocast_enabled(tensor.device().type());
}

}  // namespace

bool is_cacheable_cast(const OpCall& call) {
  if (!call.info().is_cast() || !call.argument(0).isTensor()) return false;
  const at::Tensor& tensor = call.argument(0).toTensor();
  return tensor.defined() && tensor.requires_grad() && tensor.is_leaf() &&
         tensor.scalar_type() == c10::kFloat && autocast_is_on(tensor);
}

at::Tensor autocast_source(const at::Tensor& tensor) {
  const auto& cast = tensor.grad_fn();
  if (!cast || cast->num_outputs() != 1 || !autocast_is_on(tensor)) return {};
  if (cast->name() != "ToCopyBackward0") return {};
  const auto* const leaf =
      dynamic_cast<const torch::autograd::AccumulateGrad*>(cast->next_edge(0).function.get());
  return leaf ? leaf->variable : at::Tensor();
}

}  // namespace remat
