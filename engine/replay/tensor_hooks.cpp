// SPDX-License-Identifier: BSD-3-Clause

// Counting the hooks of tensors, and restoring them.
#include "tensor_hooks.h"

#include <c10/util/irange.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include <remat/engine/current_node.h>
#include <remat/engine/graph_walk.h>

namespace remat {
namespace {

/// Null if the tensor has never had hooks.
torch::autograd::hooks_list* hooks_of(const at::Tensor& tensor) {
  const auto* const meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta ? meta->cpp_hooks_list_.get() : nullptr;
}

/// Counts hooks; LibTorch leaves an empty function in place of a removed one.
size_t count(const torch::autograd::hooks_list* hooks) {
  if (!hooks) return 0;
  return std::count_if(hooks->begin(), hooks->end(), [](const auto& hook) { return bool(hook); });
}

size_t count_of(const NodePtr& node) {
  return node ? node->tensor_pre_hooks().size() : 0;
}

/// True if `node` is no longer the tensor's grad_fn. As long as it is, the node must keep its hook
/// that calls the tensor's hooks, even if the tensor has none left, because LibTorch would not set
/// that hook again.
bool has_left(const at::Tensor& tensor, const NodePtr& node) {
  return torch::autograd::impl::get_autograd_meta(tensor)->grad_fn_ != node;
}

/// Takes the retain_grad() hook. A node without one stays untouched: other threads may read it.
std::unique_ptr<torch::autograd::FunctionPreHook> take_retained(torch::autograd::Node& node,
                                                                size_t output) {
  return node.retains_grad_hooks().contains(output) ? node.pop_retains_grad_hook(output) : nullptr;
}

}  // namespace

TensorHooks::TensorHooks(c10::ArrayRef<at::Tensor> arguments, c10::ArrayRef<at::Tensor> captured,
                         const RegionBody& body) {
  for (const at::Tensor& tensor : arguments) keep(tensor, /*is_argument=*/true);
  for (const at::Tensor& tensor : captured) keep(tensor, /*is_argument=*/false);
  of_language_ = body.keep_hooks(tensors_);
}

// In reverse order: several tensors may share a node, and keep() saw it unchanged for the first.
TensorHooks::~TensorHooks() {
  for (size_t i = tensors_.size(); i > 0; --i) restore(tensors_[i - 1], kept_[i - 1]);
}

void TensorHooks::keep(const at::Tensor& tensor, bool is_argument) {
  if (!tensor.defined() || !tensor.requires_grad() || is_stale_view(tensor)) return;
  const auto* const hooks = hooks_of(tensor);
  Kept kept{.count = count(hooks), .node = tensor.grad_fn()};
  if (hooks) kept.hooks = *hooks;
  kept.of_node = count_of(kept.node);
  if (is_argument && kept.node) {
    kept.output = tensor.output_nr();
    kept.retained = take_retained(*kept.node, *kept.output);
  }
  tensors_.push_back(tensor);
  kept_.push_back(std::move(kept));
}

void TensorHooks::restore(const at::Tensor& tensor, Kept& kept) {
  auto* const hooks = hooks_of(tensor);
  if (count(hooks) < kept.count && hooks) *hooks = kept.hooks;
  while (count(hooks) > kept.count && hooks->size() > kept.hooks.size()) hooks->pop_back();
  if (has_left(tensor, kept.node) && count_of(kept.node) > kept.of_node)
    kept.node->tensor_pre_hooks().resize(kept.of_node);
  if (!kept.output) return;
  take_retained(*kept.node, *kept.output);
  if (kept.retained) kept.node->add_retains_grad_hook(std::move(kept.retained), *kept.output);
}

bool TensorHooks::changed_before(const EdgeList& roots) const {
  std::vector<at::Tensor> changed;
  if (of_language_) of_language_->append_changed(changed);
  for (const auto i : c10::irange(tensors_.size())) {
    if (count(hooks_of(tensors_[i])) != kept_[i].count ||
        count_of(kept_[i].node) != kept_[i].of_node)
      changed.push_back(tensors_[i]);
  }
  if (changed.empty()) return false;
  std::vector<const torch::autograd::Node*> nodes;
  for (const at::Tensor& tensor : changed)
    nodes.push_back(torch::autograd::impl::gradient_edge(tensor).function.get());
  bool passes = false;
  visit_nodes(roots, [&](const torch::autograd::Node& node) {
    passes = passes || std::find(nodes.begin(), nodes.end(), &node) != nodes.end();
  });
  return passes;
}

bool TensorHooks::lost() const {
  for (const auto i : c10::irange(tensors_.size())) {
    if (count(hooks_of(tensors_[i])) < kept_[i].count) return true;
  }
  return of_language_ && of_language_->lost();
}

}  // namespace remat
