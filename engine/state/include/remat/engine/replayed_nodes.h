// SPDX-License-Identifier: BSD-3-Clause

// Giving nodes that autograd makes on its own threads the sequence numbers of plain code.
#pragma once

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>

#include <remat/engine/export.h>

namespace remat {

/// Note [Numbers on autograd's threads]: autograd runs the node with the highest sequence number
/// first, which decides the order in which gradients are added. Each thread counts its nodes. A
/// backward with create_graph makes nodes on the threads of devices, in one graph with the nodes of
/// the forward's thread. Replays make nodes on the threads of devices, too, so all later nodes
/// there would get higher numbers than in plain code. So when a backward with create_graph is done,
/// the nodes that it has made get the numbers that they would have without replays.

/// While alive, nodes that this thread makes count as nodes of a replay. Only on autograd's own
/// threads, because on other threads the order of nodes is the same with or without replays.
class REMAT_API ReplayedNodes {
 public:
  ReplayedNodes();
  ReplayedNodes(const ReplayedNodes&) = delete;
  ReplayedNodes& operator=(const ReplayedNodes&) = delete;
  ~ReplayedNodes();

 private:
  bool is_counted() const { return begin_ != kNotCounted; }

  static constexpr uint64_t kNotCounted = ~uint64_t{0};
  const uint64_t begin_;  ///< Number of the replay's first node.
};

/// Construct it before a backward with create_graph that is called outside of regions.
class REMAT_API NumberedNodes {
 public:
  NumberedNodes();
  NumberedNodes(const NumberedNodes&) = delete;
  NumberedNodes& operator=(const NumberedNodes&) = delete;
  ~NumberedNodes();

  /// Gives the nodes behind `results` the numbers that they would have without replays.
  void number(const torch::autograd::variable_list& results) const;

  /// Like number(), for a backward that has accumulated into the leaves behind `roots`.
  void number_grads(const torch::autograd::edge_list& roots) const;

 private:
  const uint64_t thread_;
  const uint64_t begin_;
};

}  // namespace remat
