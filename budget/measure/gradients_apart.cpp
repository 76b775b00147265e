// SPDX-License-Identifier: BSD-3-Clause

#include "gradients_apart.h"

#include <ATen/ops/zeros_like.h>
#include <c10/util/irange.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <atomic>
#include <utility>

namespace remat {
namespace {

std::atomic<GradientsApart*> current{nullptr};

}  // namespace

GradientsApart::GradientsApart(std::vector<at::Tensor>& leaves) : leaves_(leaves) {
  for (const at::Tensor& leaf : leaves_) {
    at::Tensor zeros = leaf.grad().defined() ? at::zeros_like(leaf.grad()) : at::Tensor();
    gradients_.push_back(std::exchange(leaf.mutable_grad(), std::move(zeros)));
  }
  GradientsApart* none = nullptr;
  current.compare_exchange_strong(none, this);
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&before_node).scopes({at::RecordScope::BACKWARD_FUNCTION}));
}

GradientsApart::~GradientsApart() {
  at::removeCallback(callback_);
  GradientsApart* self = this;
  current.compare_exchange_strong(self, nullptr);
  for (const auto i : c10::irange(leaves_.size()))
    leaves_[i].mutable_grad() = std::move(gradients_[i]);
}

std::unique_ptr<at::ObserverContext> GradientsApart::before_node(
    const at::RecordFunction& /*node*/) {
  GradientsApart* const apart = current.load();
  const auto node = torch::autograd::get_current_node();
  const auto* const accumulates = dynamic_cast<torch::autograd::AccumulateGrad*>(node.get());
  if (apart && accumulates) apart->add(accumulates->variable);
  return nullptr;
}

void GradientsApart::add(const at::Tensor& leaf) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool is_known = std::any_of(leaves_.begin(), leaves_.end(),
                                    [&](const at::Tensor& known) { return known.is_same(leaf); });
  if (is_known) return;
  leaves_.push_back(leaf);
  gradients_.push_back(std::exchange(leaf.mutable_grad(), at::Tensor()));
}

}  // namespace remat
