// SPDX-License-Identifier: BSD-3-Clause

// Minimum cut of a small graph.
#pragma once

#include <cstddef>
#include <vector>

namespace remat::detail {

/// Wide enough for a product of bytes and ticks.
__extension__ using Int128 = __int128;

/// Dinic's algorithm on integers. Node 0 is the source, node 1 the sink.
class MinCut {
 public:
  explicit MinCut(size_t nodes) : edges_of_(nodes) {}

  static constexpr size_t source = 0;
  static constexpr size_t sink = 1;
  /// Capacity of an edge that no minimum cut crosses if another cut exists.
  static Int128 unbounded();

  void add_edge(size_t from, size_t to, Int128 capacity);

  /// Returns the minimum cut with the fewest nodes on the source's side; per node: true if the node
  /// is on that side. Call it once.
  std::vector<char> solve();

 private:
  struct Edge {
    size_t to;
    size_t back;  // index of the reverse edge at `to`
    Int128 capacity;
  };

  bool find_levels();
  Int128 push(size_t node, Int128 limit);

  std::vector<std::vector<Edge>> edges_of_;
  std::vector<int> level_;
  std::vector<size_t> next_;
};

}  // namespace remat::detail
