// SPDX-License-Identifier: BSD-3-Clause

// Visiting the nodes of autograd's graph, and the views at which a backward pass begins.
#pragma once

#include <torch/csrc/autograd/function.h>

#include <cstdint>
#include <unordered_set>
#include <vector>

#include <remat/engine/backward_observer.h>

namespace remat {

/// Calls `visit(node)` once for each node reachable from `roots`.
template <class Visit>
void visit_nodes(const EdgeList& roots, Visit&& visit) {
  std::unordered_set<torch::autograd::Node*> seen;
  std::vector<torch::autograd::Node*> open;
  const auto add = [&](const EdgeList& edges) {
    for (const torch::autograd::Edge& edge : edges) {
      if (edge.is_valid() && seen.insert(edge.function.get()).second)
        open.push_back(edge.function.get());
    }
  };
  add(roots);
  while (!open.empty()) {
    torch::autograd::Node& node = *open.back();
    open.pop_back();
    add(node.next_edges());
    visit(node);
  }
}

/// Hashes which views the tensors at `roots` are. The op log alone does not tell, because it shows
/// a view only where an op reads the view, and perhaps no op reads these tensors: Note [Views are
/// known by what reads them]. Views of a whole tensor do not count.
uint64_t hash_of_views(const EdgeList& roots);

}  // namespace remat
