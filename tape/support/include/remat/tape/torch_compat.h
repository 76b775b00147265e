// SPDX-License-Identifier: BSD-3-Clause

// What differs between the versions of LibTorch that remat supports. Classes that remat derives
// from are in backend/dispatch/engine_compat.h, those of LibTorch's Python half in
// python/bindings/py_node_compat.h.
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

/// Makes a node owned by a NodePtr. Throws what T's constructor throws. From 2.13 on, whoever
/// refers to a node weakly keeps its members: T has none that could hold a SavedVariable, which
/// refers to its own node so, else it must free them in an override of release_resources().
template <class T, class... Args>
NodePtr make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<T>(std::forward<Args>(args)...);
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

namespace detail {

/// Tells those who asked for it (torch.autograd.graph.node_creation_hook, from 2.14) of a node that
/// is in the graph now; each node once.
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

/// True for tensors with names for their dimensions, which LibTorch has up to 2.12.
template <class Key = c10::DispatchKey>
bool has_dimension_names(c10::DispatchKeySet keys) {
  if constexpr (requires { Key::Named; }) {
    return keys.has(Key::Named);
  } else {
    return false;
  }
}

/// torch::profiler::impl::ProfilerStateBase of this thread, null without one.
template <class ProfilerState>
ProfilerState* profiler_of_thread() {
  if constexpr (requires { ProfilerState::getTLS(); }) {
    return ProfilerState::getTLS();
  } else {
    return ProfilerState::get(/*global=*/false);
  }
}

/// Makes a new node the history of `tensor`, as the op that made `tensor` does it.
inline void set_new_history(const at::Tensor& tensor, const NodePtr& node) {
  torch::autograd::set_history(tensor, node);
  detail::tell_of_new_node(node);
}

/// Makes a new node the history of `tensor`, as an op that writes in place does it.
inline void rebase_new_history(const at::Tensor& tensor, const NodePtr& node) {
  detail::rebase_history(tensor, node);
}

}  // namespace remat
