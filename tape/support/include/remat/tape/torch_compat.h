// SPDX-License-Identifier: BSD-3-Clause

// The few LibTorch types whose spelling differs between the versions remat supports.
#pragma once

#include <torch/csrc/autograd/edge.h>

#include <memory>
#include <type_traits>
#include <utility>

#include <c10/util/intrusive_ptr.h>

namespace remat {

/// Owning pointer to an autograd node: std::shared_ptr up to LibTorch 2.12, c10::intrusive_ptr
/// from 2.13.
using NodePtr = decltype(torch::autograd::Edge::function);

/// The weak form of NodePtr.
using WeakNodePtr =
    std::conditional_t<std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>,
                       std::weak_ptr<torch::autograd::Node>,
                       c10::weak_intrusive_ptr<torch::autograd::Node>>;

/// Makes a node owned by a NodePtr. Throws what T's constructor throws.
template <class T, class... Args>
NodePtr make_node(Args&&... args) {
  if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
    return std::make_shared<T>(std::forward<Args>(args)...);
  } else {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  }
}

}  // namespace remat
