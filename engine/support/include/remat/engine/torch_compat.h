// SPDX-License-Identifier: BSD-3-Clause

// Differences between the versions of LibTorch that remat supports. Those that concern a base class
// of remat's engine are in backend/dispatch/saved_tensor_engine.h, and those in LibTorch's Python
// half in python/bindings/py_node_compat.h.
#pragma once

#include <c10/core/DispatchKeySet.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <type_traits>
#include <utility>

namespace remat {

/// Owning pointer to an autograd node: std::shared_ptr up to LibTorch 2.12, c10::intrusive_ptr
/// from 2.13.
using NodePtr = decltype(torch::autograd::Edge::function);

/// The weak form of NodePtr.
using WeakNodePtr =
    std::conditional_t<std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>,
                       std::weak_ptr<torch::autograd::Node>,
                       c10::weak_intrusive_ptr<torch::autograd::Node>>;

/// Makes a node owned by a NodePtr. Throws what T's constructor throws. From 2.13 on, a weak
/// reference to the node keeps its members alive. So T must not have members that could hold a
/// SavedVariable (which refers weakly to its own node), unless it frees them in an override of
/// release_resources().
template <class T, class... Args>
NodePtr make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<T>(std::forward<Args>(args)...);
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

namespace detail {

/// Calls the node creation hooks (torch.autograd.graph.node_creation_hook, from 2.14) for a node
/// that has just entered the graph. Call it once per node.
template <class Node>
void tell_of_new_node(const Node& node) {
  if constexpr (requires { fire_node_creation_hooks(node); }) fire_node_creation_hooks(node);
}

template <class Tensor>
void rebase_history(const Tensor& tensor, const NodePtr& node) {
  using torch::autograd::impl::rebase_history;
  torch::autograd::Edge edge(node, 0);
  if constexpr (std::is_void_v<decltype(rebase_history(tensor, std::move(edge)))>) {
    rebase_history(tensor, std::move(edge));
  } else {
    tell_of_new_node(rebase_history(tensor, std::move(edge)));
  }
}

}  // namespace detail

/// True for tensors with named dimensions, which LibTorch supports up to 2.12.
template <class Key = c10::DispatchKey>
bool has_dimension_names(c10::DispatchKeySet keys) {
  if constexpr (requires { Key::Named; }) {
    return keys.has(Key::Named);
  } else {
    return false;
  }
}

/// Returns this thread's torch::profiler::impl::ProfilerStateBase, or null if there is none.
template <class ProfilerState>
ProfilerState* profiler_of_thread() {
  if constexpr (requires { ProfilerState::getTLS(); }) {
    return ProfilerState::getTLS();
  } else {
    return ProfilerState::get(/*global=*/false);
  }
}

/// Makes a new node the history of `tensor`, as an out-of-place op does for its result.
inline void set_new_history(const at::Tensor& tensor, const NodePtr& node) {
  torch::autograd::set_history(tensor, node);
  detail::tell_of_new_node(node);
}

/// Makes a new node the history of `tensor`, as an in-place op does.
inline void rebase_new_history(const at::Tensor& tensor, const NodePtr& node) {
  detail::rebase_history(tensor, node);
}

}  // namespace remat
