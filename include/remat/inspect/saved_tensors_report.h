// SPDX-License-Identifier: BSD-3-Clause

// A report on all saved tensors: in regions, and in the graph outside of them.
#pragma once

#include <ATen/core/Tensor.h>
// edge.h alone does not compile since LibTorch 2.13.
#include <torch/csrc/autograd/function.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <remat/engine/export.h>
#include <remat/inspect/region_saves.h>

namespace remat {

/// Owning pointer to a node of autograd's graph.
using GraphNode = decltype(torch::autograd::Edge::function);

/// A function that the caller supplies, since LibTorch lists the saved tensors of a node only in
/// Python. It calls `visit` for each tensor that the node saves, without unpacking any, and skips
/// tensors kept by hooks. It does not call `visit` for a node whose saved tensors are freed.
using VisitSaved =
    std::function<void(const GraphNode& node, const std::function<void(const at::Tensor&)>& visit)>;

/// Storages outside of regions that nodes of the same types save.
struct NodeSaves {
  std::string nodes;  ///< Types of the nodes that save each storage: "ExpBackward0, MulBackward0"
  size_t bytes = 0;
  size_t storages = 0;
};

struct SavedTensorsReport {
  std::vector<RegionSaves>
      regions;  ///< Sorted by name ("layer2" before "layer10"), equal names oldest first
  std::optional<std::vector<NodeSaves>> nodes;  ///< Most bytes first; unset if there are no `roots`
  size_t region_bytes = 0;
  size_t node_bytes = 0;

  /// The report as text, without a final newline: one line for the total, one per group of regions
  /// with equal contents, one per kind of node, then the first region of each group in full.
  REMAT_API std::string str(const Annotate& annotate = {}) const;
};

/// Reports what the regions of this process hold, and what the graphs behind `roots`, if any, save.
/// Regions whose forward runs on another thread are left out. Each storage is counted once: regions
/// come first, in their order in the report. Not counted: leaves that require grad and views of
/// them. Nothing is unpacked or replayed. Freed graphs are allowed. Any thread.
REMAT_API SavedTensorsReport
saved_tensors_report(const std::optional<std::vector<at::Tensor>>& roots = std::nullopt,
                     const VisitSaved& visit_saved = {});

}  // namespace remat
