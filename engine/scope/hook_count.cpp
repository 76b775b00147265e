// SPDX-License-Identifier: BSD-3-Clause

// Walking the part of a graph that a backward pass runs.
#include <remat/engine/hook_count.h>

#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace remat {
namespace {

using torch::autograd::Node;

std::atomic<GradientHookCounter> gradient_counter{nullptr};
std::atomic<AccumulatedHookCounter> accumulated_counter{nullptr};

/// LibTorch keeps the C++ hooks on one tensor in one object, of a class that it does not export.
/// The object's vtable has the class's name, but there is no typeinfo that dynamic_cast or UBSan's
/// vptr check could use.
[[gnu::no_sanitize("vptr")]] const torch::autograd::CppFunctionTensorPreHook* as_list(
    const torch::autograd::FunctionPreHook& hook) {
  using List = torch::autograd::CppFunctionTensorPreHook;
  const bool is_list =
      std::string_view(typeid(hook).name()) == "N5torch8autograd24CppFunctionTensorPreHookE";
  return is_list ? static_cast<const List*>(&hook) : nullptr;
}

[[gnu::no_sanitize("vptr")]] HookCount count_in(const torch::autograd::FunctionPreHook& hook) {
  if (const auto* const list = as_list(hook)) {
    const auto is_set = [](const auto& one) { return bool(one); };
    const auto hooks = std::count_if(list->hooks_->begin(), list->hooks_->end(), is_set);
    return {static_cast<size_t>(hooks), list->value_idx_};
  }
  const auto count = gradient_counter.load();
  return count ? count(hook) : HookCount{1, std::nullopt};
}

/// Number of hooks on `node` that run. If `ends` has edges to `node`, only hooks on the outputs of
/// these edges run.
size_t hooks_of(Node& node, const EdgeList& ends) {
  const auto is_here = [&](const torch::autograd::Edge& end) {
    return end.function.get() == &node;
  };
  const bool is_end = std::any_of(ends.begin(), ends.end(), is_here);
  size_t count = 0;
  for (const auto& hook : node.tensor_pre_hooks()) {
    const HookCount in = count_in(*hook);
    const auto gets_value = [&](const torch::autograd::Edge& end) {
      return is_here(end) && end.input_nr == in.output.value_or(end.input_nr);
    };
    if (!is_end || std::any_of(ends.begin(), ends.end(), gets_value)) count += in.hooks;
  }
  return count;
}

/// The reachable nodes, each after the nodes that it leads to.
std::vector<Node*> in_post_order(const EdgeList& roots) {
  std::vector<Node*> order;
  std::unordered_set<Node*> seen;
  std::vector<std::pair<Node*, size_t>> open;  // Nodes, with the number of the next edge to follow.
  const auto enter = [&](const torch::autograd::Edge& edge) {
    if (edge.is_valid() && seen.insert(edge.function.get()).second)
      open.emplace_back(edge.function.get(), 0);
  };
  for (const torch::autograd::Edge& root : roots) {
    enter(root);
    while (!open.empty()) {
      auto& [node, next] = open.back();
      if (next < node->num_outputs()) {
        enter(node->next_edge(next++));
      } else {
        order.push_back(node);
        open.pop_back();
      }
    }
  }
  return order;
}

}  // namespace

void set_hook_counters(GradientHookCounter gradient, AccumulatedHookCounter accumulated) {
  gradient_counter = gradient;
  accumulated_counter = accumulated;
}

size_t count_hooks(const EdgeList& roots, const EdgeList& ends) {
  size_t count = 0;
  std::unordered_map<const Node*, bool> runs;
  for (const torch::autograd::Edge& end : ends) {
    if (end.is_valid()) runs[end.function.get()] = true;
  }
  const bool all = ends.empty();
  for (Node* const node : in_post_order(roots)) {
    const auto leads_there = [&](const torch::autograd::Edge& edge) {
      const auto next = runs.find(edge.function.get());
      return edge.is_valid() && next != runs.end() && next->second;
    };
    const auto& next = node->next_edges();
    bool& is_run = runs[node];
    is_run = is_run || all || std::any_of(next.begin(), next.end(), leads_there);
    if (is_run) count += hooks_of(*node, ends);
  }
  return count;
}

size_t count_accumulated(const Node& leaf) {
  const auto& hook = leaf.tensor_post_acc_grad_hooks();
  if (!hook) return 0;
  const auto count = accumulated_counter.load();
  return count ? count(*hook) : 1;
}

}  // namespace remat
