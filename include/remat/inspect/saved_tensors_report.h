// SPDX-License-Identifier: BSD-3-Clause

// All that waits for backward: in regions, and in the graph outside of them.
#pragma once

#include <ATen/core/Tensor.h>
// edge.h alone does not compile since LibTorch 2.13.
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <remat/inspect/region_saves.h>
#include <remat/tape/export.h>

namespace remat {

/// Owner of a node of autograd's graph.
using GraphNode = decltype(torch::autograd::Edge::function);

/// Shows the tensors that a node saves, without unpacking any: those kept by hooks are left out,
/// and a node that has been freed shows none. LibTorch's Python half has a way to ask for them, its
/// C++ half has none.
using VisitSaved =
    std::function<void(const GraphNode& node, const std::function<void(const at::Tensor&)>& visit)>;

/// Storages outside of regions that nodes of the same types save.
struct NodeSaves {
  std::string nodes;  ///< "ExpBackward0, MulBackward0": the types of nodes that save each of them.
  size_t bytes = 0;
  size_t storages = 0;
};

struct SavedTensorsReport {
  std::vector<RegionSaves> regions;             ///< By name, numbers in it by value; then by age.
  std::optional<std::vector<NodeSaves>> nodes;  ///< The largest first; unset without roots.
  size_t region_bytes = 0;
  size_t node_bytes = 0;

  /// As text, without a line feed at its end: a line for the whole, one per group of regions that
  /// hold alike, one per kind of node, then the first region of each group in full.
  REMAT_API std::string str(const Annotate& annotate = {}) const;
};

/// What the regions of this process hold, and the graphs behind `roots`, if any are given. Regions
/// whose forward runs on another thread are left out. Each storage is billed once: regions first,
/// in their order here. Not billed: leaves that require grad and views of them. Nothing is unpacked
/// or replayed, and freed graphs do not matter. Any thread.
REMAT_API SavedTensorsReport
saved_tensors_report(const std::optional<std::vector<at::Tensor>>& roots = std::nullopt,
                     const VisitSaved& visit_saved = {});

}  // namespace remat
