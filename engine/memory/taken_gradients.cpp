// SPDX-License-Identifier: BSD-3-Clause

// Noting which memory nodes get, and moving the .grad of leaves behind the nodes off that memory.
#include <remat/engine/taken_gradients.h>

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <remat/engine/held_storage.h>
#include <remat/engine/op_call.h>
#include <remat/engine/tensor_layout.h>
#include <remat/engine/torch_compat.h>
#include <remat/engine/unseen.h>

namespace remat {
namespace {

using torch::autograd::Node;

/// The memory of the saved tensors that one node gets in one backward. A callback of that backward
/// owns the object.
class Given {
 public:
  Given(const Node* node, std::vector<at::Tensor> leaves)
      : node_(node), leaves_(std::move(leaves)) {}
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;
  ~Given() {
    try {
      settle();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the backward has failed already
    }
  }

  const Node* node() const { return node_; }
  void add(const at::Tensor& value) { memory_.emplace_back(value); }

  void settle() {
    const std::vector<at::Tensor> leaves = std::exchange(leaves_, {});
    const Unseen unseen;
    const c10::AutoGradMode no_grad(false);
    for (const at::Tensor& leaf : leaves) {
      at::Tensor& grad = leaf.mutable_grad();
      if (!grad.defined() || !has_layout(grad) || !is_given(grad)) continue;
      if (grad.storage().use_count() > 1) {
        grad = grad.clone();
      } else if (!grad.is_inference()) {
        // The .grad has the saved tensor's version counter: see Note [Memory that others hold].
        grad.unsafeGetTensorImpl()->set_version_counter(c10::VariableVersion(0));
      }
    }
  }

 private:
  bool is_given(const at::Tensor& grad) const {
    return std::any_of(memory_.begin(), memory_.end(), [&](const HeldStorage& memory) {
      return memory.address() == memory_of(grad);
    });
  }

  const Node* node_;  // Only an identity; never dereferenced.
  std::vector<at::Tensor> leaves_;
  std::vector<HeldStorage> memory_;
};

thread_local std::weak_ptr<Given> last_given;

/// Leaves behind a custom function's node; empty for nodes of LibTorch's ops, which never return a
/// saved tensor.
std::vector<at::Tensor> leaves_behind(const Node& node) {
  std::vector<at::Tensor> leaves;
  for (const torch::autograd::Edge& edge : node.next_edges()) {
    const bool may_be_leaf =
        edge.function && edge.function->sequence_nr() == std::numeric_limits<uint64_t>::max();
    if (C10_LIKELY(!may_be_leaf)) continue;
    if (dynamic_cast<const torch::autograd::TraceableFunction*>(&node)) return {};
    const auto* const leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(edge.function.get());
    if (leaf) leaves.push_back(leaf->variable);
  }
  return leaves;
}

}  // namespace

// With create_graph there is nothing to do, because AccumulateGrad copies.
void note_given_to_node(const at::Tensor& value) {
  const NodePtr node = torch::autograd::get_current_node();
  std::shared_ptr<Given> given = last_given.lock();
  if (C10_UNLIKELY(given != nullptr) && given->node() != node.get())
    std::exchange(given, nullptr)->settle();
  if (!node || c10::GradMode::is_enabled() || !has_layout(value)) return;
  if (!given) {
    std::vector<at::Tensor> leaves = leaves_behind(*node);
    if (leaves.empty()) return;
    given = std::make_shared<Given>(node.get(), std::move(leaves));
    last_given = given;
    torch::autograd::Engine::get_default_engine().queue_callback([given] { given->settle(); });
  }
  given->add(value);
}

}  // namespace remat
