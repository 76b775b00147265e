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
  int64_t taken_bytes = 0;      ///< Gradients, workspace, and what the node and the program hold
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

class PricedStep {
 public:
  PricedStep(const StepGraph& graph, const NodeView& view, double record_us)
      : graph_(graph), view_(view), record_us_(record_us) {}

  /// The minimum of recomputation time + price * bytes in memory, in us.
  double least(double us_per_byte) const {
    const double scaled = std::floor(us_per_byte * ticks_per_us * price_scale);
    const auto price = static_cast<Int128>(scaled);
    MinCut cut(2 + graph_.profile.records.size() + graph_.profile.values.size());
    for (const int32_t v : view_.needed)
      cut.add_edge(MinCut::source, value(v), MinCut::unbounded());
    for (size_t v = 0; v < view_.present.size(); ++v) {
      if (view_.present[v]) continue;
      const auto id = static_cast<int32_t>(v);
      cut.add_edge(value(id), record(graph_.maker(id)), price * graph_.bytes(id));
    }
    for (int32_t j = 0; j < graph_.size(); ++j) {
      const auto ticks = static_cast<Int128>(std::floor(us(j) * ticks_per_us));
      cut.add_edge(record(j), MinCut::sink, ticks * static_cast<Int128>(price_scale));
      if (!graph_.profile.records[j].reads_data) continue;
      for (const int32_t v : graph_.profile.records[j].reads) {
        if (!view_.present[v]) cut.add_edge(record(j), value(v), MinCut::unbounded());
      }
    }
    return cost(cut.solve(), scaled / price_scale / ticks_per_us);
  }

 private:
  size_t record(int32_t j) const { return 2 + static_cast<size_t>(j); }
  size_t value(int32_t v) const {
    return 2 + graph_.profile.records.size() + static_cast<size_t>(v);
  }
  double us(int32_t j) const { return graph_.profile.records[j].replay_us + record_us_; }

  double cost(const std::vector<char>& side, double us_per_byte) const {
    double sum = 0;
    for (int32_t j = 0; j < graph_.size(); ++j) {
      if (side[record(j)]) sum += std::floor(us(j) * ticks_per_us) / ticks_per_us;
    }
    for (size_t v = 0; v < view_.present.size(); ++v) {
      const auto id = static_cast<int32_t>(v);
      if (view_.present[v] || !side[value(id)] || side[record(graph_.maker(id))]) continue;
      sum += us_per_byte * static_cast<double>(graph_.bytes(id));
    }
    return sum;
  }

  const StepGraph& graph_;
  const NodeView& view_;
  double record_us_;
};

/// A selection of the prices at which single values begin to pay, evenly spread among them.
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

StepBound::StepBound(const StepGraph& graph, const ReplayCosts& costs) {
  for (const NodeView& view : heaviest_nodes(graph)) {
    const PricedStep priced(graph, view, costs.record_us);
    for (const double price : prices_of(graph, view))
      lines_.push_back({priced.least(price), price, view.taken_bytes});
  }
}

double StepBound::rerun_us(int64_t budget_bytes) const {
  double most = 0;
  for (const Line& line : lines_) {
    const auto left = static_cast<double>(budget_bytes - line.taken_bytes);
    most = std::max(most, line.us - line.us_per_byte * left);
  }
  return most;
}

}  // namespace remat::detail
