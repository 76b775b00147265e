// SPDX-License-Identifier: BSD-3-Clause

// Minimum cuts for a few prices at a few nodes. See Note [Bound of a step].
#include "step_bound.h"

#include <algorithm>
#include <cmath>

#include <remat/planner/min_cut.h>

namespace remat::detail {

namespace {

constexpr size_t prices_tried = 16;
constexpr size_t nodes_tried = 3;
constexpr double ticks_per_us = 1000;
constexpr double price_scale = 1 << 20;

/// The state while a node of backward runs.
struct NodeView {
  int32_t node = 0;
  int64_t taken_bytes = 0;      ///< Gradients, workspace, and memory that node and program hold
  std::vector<int32_t> needed;  ///< Values that later nodes need
  std::vector<char> present;    ///< Per value: true if it is in memory at no cost
};

NodeView view_of(const StepGraph& graph, int32_t node) {
  const StepProfile& profile = graph.profile;
  NodeView view{node, profile.end_bytes + profile.nodes[node].inside_bytes, {}, {}};
  view.present.assign(profile.values.size(), 0);
  for (size_t v = 0; v < profile.values.size(); ++v) {
    const bool is_programs = graph.is_programs(static_cast<int32_t>(v));
    const bool is_gone = profile.values[v].released >= 0 && profile.values[v].released <= node;
    if (is_programs && is_gone) view.taken_bytes -= profile.values[v].bytes;
    if (profile.values[v].maker < 0 || (is_programs && !is_gone)) view.present[v] = 1;
  }
  for (const int32_t slot : graph.slots_of_node[node]) {
    const int32_t v = profile.slots[slot].value;
    if (v < 0 || view.present[v]) continue;
    view.present[v] = 1;
    view.taken_bytes += graph.bytes(v);
  }
  std::vector<char> seen(profile.values.size(), 0);
  for (const StepSlot& slot : profile.slots) {
    if (slot.value < 0 || slot.node <= node || view.present[slot.value] || seen[slot.value])
      continue;
    seen[slot.value] = 1;
    view.needed.push_back(slot.value);
  }
  return view;
}

int64_t needed_bytes(const StepGraph& graph, const NodeView& view) {
  int64_t sum = 0;
  for (const int32_t v : view.needed) sum += graph.bytes(v);
  return sum;
}

/// The nodes with the largest sum of taken and needed bytes.
std::vector<NodeView> heaviest_nodes(const StepGraph& graph) {
  std::vector<std::pair<int64_t, int32_t>> order;
  for (size_t q = 0; q < graph.profile.nodes.size(); ++q) {
    const NodeView view = view_of(graph, static_cast<int32_t>(q));
    order.emplace_back(-view.taken_bytes - needed_bytes(graph, view), static_cast<int32_t>(q));
  }
  std::sort(order.begin(), order.end());
  std::vector<NodeView> views;
  for (size_t i = 0; i < std::min(order.size(), nodes_tried); ++i)
    views.push_back(view_of(graph, order[i].second));
  return views;
}

/// The minimum of recomputation time + price * bytes in memory, in us.
double least_cost(const StepGraph& graph, const NodeView& view, double us_per_byte) {
  const auto record = [](int32_t j) { return 2 + static_cast<size_t>(j); };
  const auto value = [&](int32_t v) {
    return 2 + graph.profile.records.size() + static_cast<size_t>(v);
  };
  const auto ticks = [&](int32_t j) {
    return std::floor(graph.profile.records[j].replay_us * ticks_per_us);
  };
  const double scaled = std::floor(us_per_byte * ticks_per_us * price_scale);
  MinCut cut(2 + graph.profile.records.size() + graph.profile.values.size());
  for (const int32_t v : view.needed) cut.add_edge(MinCut::source, value(v), MinCut::unbounded());
  std::vector<int32_t> absent;
  for (size_t v = 0; v < view.present.size(); ++v) {
    if (!view.present[v]) absent.push_back(static_cast<int32_t>(v));
  }
  for (const int32_t v : absent) {
    cut.add_edge(value(v), record(graph.maker(v)), static_cast<Int128>(scaled) * graph.bytes(v));
  }
  for (int32_t j = 0; j < graph.size(); ++j) {
    cut.add_edge(record(j), MinCut::sink,
                 static_cast<Int128>(ticks(j)) * static_cast<Int128>(price_scale));
    if (!graph.profile.records[j].reads_data) continue;
    for (const int32_t v : graph.profile.records[j].reads) {
      if (!view.present[v]) cut.add_edge(record(j), value(v), MinCut::unbounded());
    }
  }
  const std::vector<char> side = cut.solve();
  double sum = 0;
  for (int32_t j = 0; j < graph.size(); ++j) {
    if (side[record(j)]) sum += ticks(j) / ticks_per_us;
  }
  for (const int32_t v : absent) {
    if (!side[value(v)] || side[record(graph.maker(v))]) continue;
    sum += scaled / price_scale / ticks_per_us * static_cast<double>(graph.bytes(v));
  }
  return sum;
}

/// Returns prices, evenly chosen from those at which keeping a value costs as much as recomputing.
std::vector<double> prices_of(const StepGraph& graph, const NodeView& view) {
  std::vector<double> ratios;
  for (const int32_t v : view.needed) {
    if (graph.bytes(v) == 0) continue;
    const double us = graph.profile.records[graph.maker(v)].replay_us;
    if (us > 0) ratios.push_back(us / static_cast<double>(graph.bytes(v)));
  }
  std::sort(ratios.begin(), ratios.end());
  std::vector<double> prices;
  for (size_t i = 0; i < prices_tried && !ratios.empty(); ++i) {
    const double price = ratios[i * (ratios.size() - 1) / (prices_tried - 1)];
    if (prices.empty() || price > prices.back() * 1.01) prices.push_back(price);
  }
  return prices;
}

}  // namespace

std::vector<BoundLine> bound_of(const StepGraph& graph) {
  std::vector<BoundLine> lines;
  for (const NodeView& view : heaviest_nodes(graph)) {
    for (const double price : prices_of(graph, view))
      lines.push_back({least_cost(graph, view, price), price, view.taken_bytes});
  }
  return lines;
}

double least_rerun_us(const std::vector<BoundLine>& bound, int64_t budget_bytes) {
  double most = 0;
  for (const BoundLine& line : bound) {
    const auto left = static_cast<double>(budget_bytes - line.taken_bytes);
    most = std::max(most, line.us - line.us_per_byte * left);
  }
  return most;
}

}  // namespace remat::detail
