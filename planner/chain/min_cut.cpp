// SPDX-License-Identifier: BSD-3-Clause

// Maximum flow by level graphs. The minimum cut is the set that the source still reaches.
#include <remat/planner/min_cut.h>

#include <algorithm>

namespace remat::detail {

Int128 MinCut::unbounded() {
  return static_cast<Int128>(1) << 120;
}

void MinCut::add_edge(size_t from, size_t to, Int128 capacity) {
  edges_of_[from].push_back({to, edges_of_[to].size(), capacity});
  edges_of_[to].push_back({from, edges_of_[from].size() - 1, 0});
}

bool MinCut::find_levels() {
  level_.assign(edges_of_.size(), -1);
  level_[source] = 0;
  std::vector<size_t> queue = {source};
  for (size_t i = 0; i < queue.size(); ++i) {
    for (const Edge& edge : edges_of_[queue[i]]) {
      if (edge.capacity == 0 || level_[edge.to] >= 0) continue;
      level_[edge.to] = level_[queue[i]] + 1;
      queue.push_back(edge.to);
    }
  }
  return level_[sink] >= 0;
}

Int128 MinCut::push(size_t node, Int128 limit) {
  if (node == sink) return limit;
  for (size_t& i = next_[node]; i < edges_of_[node].size(); ++i) {
    Edge& edge = edges_of_[node][i];
    if (edge.capacity == 0 || level_[edge.to] != level_[node] + 1) continue;
    const Int128 pushed = push(edge.to, std::min(limit, edge.capacity));
    if (pushed == 0) continue;
    edge.capacity -= pushed;
    edges_of_[edge.to][edge.back].capacity += pushed;
    return pushed;
  }
  return 0;
}

std::vector<char> MinCut::solve() {
  while (find_levels()) {
    next_.assign(edges_of_.size(), 0);
    while (push(source, unbounded()) != 0) {
    }
  }
  std::vector<char> side(edges_of_.size());
  for (size_t i = 0; i < side.size(); ++i) side[i] = level_[i] >= 0 ? 1 : 0;
  return side;
}

}  // namespace remat::detail
