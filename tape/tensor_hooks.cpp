// SPDX-License-Identifier: BSD-3-Clause

// Counting the hooks of tensors, and dropping the newest.
#include "tensor_hooks.h"

#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <remat/tape/current_node.h>

namespace remat {
namespace {

/// Null if it never had one.
torch::autograd::hooks_list* hooks_of(const at::Tensor& tensor) {
  const auto* const meta = torch::autograd::impl::get_autograd_meta(tensor);
  return meta ? meta->cpp_hooks_list_.get() : nullptr;
}

std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>* node_hooks_of(
    const at::Tensor& tensor) {
  const auto& node = tensor.grad_fn();
  return node ? &node->tensor_pre_hooks() : nullptr;
}

template <class Hooks>
size_t count(const Hooks* hooks) {
  return hooks ? hooks->size() : 0;
}

template <class Hooks>
void drop_after(Hooks* hooks, size_t number) {
  if (hooks && hooks->size() > number) hooks->resize(number);
}

}  // namespace

void TensorHooks::watch(c10::ArrayRef<at::Tensor> tensors) {
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined() && tensor.requires_grad() && !is_stale_view(tensor))
      watched_.push_back({tensor, count(hooks_of(tensor)), count(node_hooks_of(tensor))});
  }
}

TensorHooks::~TensorHooks() {
  for (const Watched& watched : watched_) {
    drop_after(hooks_of(watched.tensor), watched.of_tensor);
    drop_after(node_hooks_of(watched.tensor), watched.of_node);
  }
}

}  // namespace remat
