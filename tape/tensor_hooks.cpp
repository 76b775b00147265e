// SPDX-License-Identifier: BSD-3-Clause

// Counting the hooks of tensors, and putting them back.
#include "tensor_hooks.h"

#include <c10/util/irange.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

#include <remat/tape/current_node.h>

#include "graph_walk.h"

namespace remat {
namespace {

/// Null if it never had one.
torch::autograd::hooks_list* hooks_of(const at::Tensor& tensor) {
  const auto* const meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta ? meta->cpp_hooks_list_.get() : nullptr;
}

/// LibTorch leaves an empty function where one was removed.
size_t count(const torch::autograd::hooks_list* hooks) {
  if (!hooks) return 0;
  return std::count_if(hooks->begin(), hooks->end(), [](const auto& hook) { return bool(hook); });
}

std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>* node_hooks_of(
    const at::Tensor& tensor) {
  const auto& node = tensor.grad_fn();
  return node ? &node->tensor_pre_hooks() : nullptr;
}

size_t count_of_node(const at::Tensor& tensor) {
  const auto* const hooks = node_hooks_of(tensor);
  return hooks ? hooks->size() : 0;
}

}  // namespace

TensorHooks::TensorHooks(c10::ArrayRef<at::Tensor> arguments, c10::ArrayRef<at::Tensor> captured,
                         const RegionBody& body) {
  for (const auto& tensors : {arguments, captured}) {
    for (const at::Tensor& tensor : tensors) {
      if (!tensor.defined() || !tensor.requires_grad() || is_stale_view(tensor)) continue;
      const auto* const hooks = hooks_of(tensor);
      tensors_.push_back(tensor);
      kept_.push_back({.count = count(hooks),
                       .hooks = hooks ? *hooks : torch::autograd::hooks_list(),
                       .of_node = count_of_node(tensor)});
    }
  }
  of_language_ = body.keep_hooks(tensors_);
}

TensorHooks::~TensorHooks() {
  for (const auto i : c10::irange(tensors_.size())) restore(tensors_[i], kept_[i]);
}

// As many as before: the function has taken its own old ones away and set new ones.
void TensorHooks::restore(const at::Tensor& tensor, const Kept& kept) const {
  auto* const hooks = hooks_of(tensor);
  if (count(hooks) < kept.count && hooks) *hooks = kept.hooks;
  while (count(hooks) > kept.count && hooks->size() > kept.hooks.size()) hooks->pop_back();
  auto* const of_node = node_hooks_of(tensor);
  if (of_node && of_node->size() > kept.of_node) of_node->resize(kept.of_node);
}

bool TensorHooks::changed_before(const EdgeList& roots) const {
  std::vector<at::Tensor> changed;
  if (of_language_) of_language_->append_changed(changed);
  for (const auto i : c10::irange(tensors_.size())) {
    if (count(hooks_of(tensors_[i])) != kept_[i].count ||
        count_of_node(tensors_[i]) != kept_[i].of_node)
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

}  // namespace remat
