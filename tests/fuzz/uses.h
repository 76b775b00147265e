// SPDX-License-Identifier: BSD-3-Clause

// How the graph of a random program is used once its forward has run: code that runs, and its text.
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
  kWriteBetween,  // the two backwards
  kTwoInFlight,
  kTwoSteps,
  kForwardThread,   // the forward on another thread
  kBackwardThread,  // the backward on another thread
  kTwoThreads,      // two graphs, a thread for each
  kCount,
};

/// What a use works on.
struct Graph {
  const at::Tensor& loss;
  const Tensors& wanted;  // leaves
  const Tensors& inputs;
  Tensors& results;                          // to be compared
  const std::function<at::Tensor()>& again;  // another forward, on the same inputs: its loss
  const std::function<at::Tensor()>& fresh;  // the same on inputs of its own
};

struct UseInfo {
  Use use;
  std::string_view cpp;
  std::string_view python;
  void (*run)(const Graph& graph);
};

const UseInfo& info(Use use);

}  // namespace remat::fuzz
