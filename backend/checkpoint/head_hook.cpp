// SPDX-License-Identifier: BSD-3-Clause

// Pre-hooks on the last nodes of a region.
#include "head_hook.h"

#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <utility>

#include <remat/tape/current_node.h>
#include <remat/tape/first_position.h>

namespace remat {
namespace {

class HeadHook final : public torch::autograd::FunctionPreHook {
 public:
  explicit HeadHook(std::weak_ptr<Region> region) : region_(std::move(region)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override {
    if (const std::shared_ptr<Region> region = region_.lock()) region->replay_for_backward();
    return grads;
  }

  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& /*args*/) const override {
    const std::shared_ptr<Region> region = region_.lock();
    TORCH_CHECK_NOT_IMPLEMENTED(
        false, "[checkpoint] ", region ? region->label() : "a freed region",
        ": expected a backward by autograd's engine, got one by compiled autograd, which takes no "
        "hooks of C++. Run backward outside of it.");
  }

 private:
  std::weak_ptr<Region> region_;
};

/// True if the node was made on this thread (each thread numbers its nodes separately) with that
/// sequence number or a later one.
bool is_since(const torch::autograd::Node& node, uint64_t sequence_nr) {
  return node.thread_id() == at::RecordFunction::currentThreadId() &&
         node.sequence_nr() >= sequence_nr;
}

}  // namespace

void hook_heads(const std::shared_ptr<Region>& region, c10::ArrayRef<at::Tensor> outputs,
                uint64_t first_sequence_nr) {
  FirstPosition<const torch::autograd::Node*> hooked;
  for (const at::Tensor& output : outputs) {
    torch::autograd::Node* const node = output.defined() ? current_node(output) : nullptr;
    if (!node || !is_since(*node, first_sequence_nr)) continue;
    if (hooked.contains(node)) continue;
    node->add_pre_hook(std::make_unique<HeadHook>(region));
    hooked.add(node);
  }
}

}  // namespace remat
