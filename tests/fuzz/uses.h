// SPDX-License-Identifier: BSD-3-Clause

// Ways to use the graph of a random program after its forward: code and its source text.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string_view>
#include <vector>

namespace remat::fuzz {

using Tensors = std::vector<at::Tensor>;

enum class Use {
  kBackward,
  kRetainGraph,
  kRetainThenDrop,
  kPartialGrads,
  kPartialTwice,
  kInputs,
  kDoubleBackward,
  kWriteBetween,  // writes between the two backwards
  kTwoInFlight,
  kTwoSteps,
  kForwardThread,   // the forward on another thread
  kBackwardThread,  // the backward on another thread
  kTwoThreads,      // two graphs, a thread for each
  kCount,
};

/// True if more than one backward may run through a part of the graph.
constexpr bool runs_twice(Use use) {
  return use == Use::kRetainGraph || use == Use::kPartialGrads || use == Use::kPartialTwice ||
         use == Use::kDoubleBackward || use == Use::kWriteBetween;
}

/// Arguments of a use.
struct Graph {
  const at::Tensor& loss;
  const Tensors& wanted;  // leaves whose gradients are wanted
  const Tensors& inputs;
  Tensors& results;                          // tensors to compare
  const std::function<at::Tensor()>& again;  // loss of another forward on the same inputs
  const std::function<at::Tensor()>& fresh;  // loss of another forward on new inputs
};

struct UseInfo {
  Use use;
  std::string_view cpp;
  std::string_view python;
  void (*run)(const Graph& graph);
};

const UseInfo& info(Use use);

}  // namespace remat::fuzz
