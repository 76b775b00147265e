// SPDX-License-Identifier: BSD-3-Clause

// Walks regions and graphs, and groups equal regions in the report.
#include <remat/inspect/saved_tensors_report.h>

#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <remat/engine/held_storage.h>
#include <remat/engine/region.h>
#include <remat/engine/tensor_meta.h>

#include "held_tensors.h"
#include "report_text.h"

namespace remat {
namespace {

/// Regions that hold equal contents: the first of them, and the names of all of them.
using Group = std::pair<const RegionSaves*, std::vector<std::string>>;

std::vector<Group> group(const std::vector<RegionSaves>& regions) {
  std::vector<Group> groups;
  std::unordered_map<std::string, size_t> known;
  for (const RegionSaves& region : regions) {
    RegionSaves nameless = region;
    nameless.region.clear();
    const auto [entry, is_new] = known.emplace(nameless.str(), groups.size());
    if (is_new) groups.push_back({&region, {}});
    groups[entry->second].second.push_back(region.region);
  }
  return groups;
}

std::string groups_str(const std::vector<Group>& groups) {
  std::vector<std::vector<std::string>> rows;
  size_t rebuilt = 0;
  for (const auto& [first, names] : groups) {
    const size_t count = names.size();
    rebuilt += count * first->rebuilt;
    rows.push_back(
        {bytes_str(first->bytes), count > 1 ? c10::str("x", count) : "", name_ranges(names),
         c10::str("(", count_str(first->storage_count(), "storage"), count > 1 ? " each)" : ")")});
  }
  std::string text = "\n\nregions:" + columns(rows, 2);
  if (rebuilt > 0)
    text += c10::str("\n  + ", count_str(rebuilt, "save"), " rebuilt on recompute, not resident");
  return text;
}

std::string details_str(const std::vector<Group>& groups, const Annotate& annotate) {
  std::string text = "\n\nregion detail:";
  for (const auto& [first, names] : groups) {
    if (names.size() > 1) text += c10::str("\n[x", names.size(), ": ", name_ranges(names), "]");
    text += c10::str("\n", first->str(annotate));
  }
  return text;
}

std::string nodes_str(const SavedTensorsReport& report) {
  if (!report.nodes)
    return "\n\noutside of regions: not walked, for want of roots (the loss, or "
           "discover_autograd_roots())";
  std::vector<std::vector<std::string>> rows;
  size_t storages = 0;
  for (const NodeSaves& node : *report.nodes) {
    storages += node.storages;
    rows.push_back({bytes_str(node.bytes), c10::str(node.nodes, " (x", node.storages, ")")});
  }
  return c10::str("\n\noutside of regions: ", bytes_str(report.node_bytes), " in ",
                  count_str(storages, "storage"), columns(rows, 2));
}

/// Visits the graph behind some roots, each node once.
class GraphWalk {
 public:
  GraphWalk(const VisitSaved& visit_saved, const std::unordered_set<const void*>& billed)
      : visit_saved_(visit_saved), billed_(billed) {}

  void walk(const at::Tensor& root) {
    if (root.defined() && root.grad_fn()) push(root.grad_fn());
    while (!waiting_.empty()) {
      const GraphNode node = std::move(waiting_.back());
      waiting_.pop_back();
      visit_saved_(node, [&](const at::Tensor& tensor) { add(*node, tensor); });
      for (const torch::autograd::Edge& edge : node->next_edges()) {
        if (edge.function) push(edge.function);
      }
    }
  }

  std::vector<NodeSaves> result() const {
    std::map<std::string, NodeSaves> by_types;
    for (const auto& [address, found] : storages_) {
      std::string types;
      for (const std::string& type : found.second) types += (types.empty() ? "" : ", ") + type;
      NodeSaves& entry = by_types[types];
      entry.nodes = types;
      entry.bytes += found.first;
      ++entry.storages;
    }
    std::vector<NodeSaves> all;
    all.reserve(by_types.size());
    for (auto& [types, entry] : by_types) all.push_back(entry);
    std::stable_sort(all.begin(), all.end(),
                     [](const NodeSaves& a, const NodeSaves& b) { return a.bytes > b.bytes; });
    return all;
  }

 private:
  void push(const GraphNode& node) {
    if (seen_.insert(node.get()).second) waiting_.push_back(node);
  }

  void add(const torch::autograd::Node& node, const at::Tensor& tensor) {
    if (tensor.defined() && !is_parameter(tensor)) add(node, HeldStorage(tensor));
  }

  void add(const torch::autograd::Node& node, const HeldStorage& held) {
    if (held.parts()) {
      for (const HeldStorage& part : *held.parts()) add(node, part);
      return;
    }
    const void* const address = held.address();
    if (!address || billed_.count(address) > 0) return;
    auto& [bytes, types] = storages_[address];
    bytes = held.size_bytes();
    types.insert(node.name());
  }

  const VisitSaved& visit_saved_;
  const std::unordered_set<const void*>& billed_;
  std::unordered_set<const torch::autograd::Node*> seen_;
  std::vector<GraphNode> waiting_;
  // By address of the storage: its bytes, and the types of the nodes that save it.
  std::map<const void*, std::pair<size_t, std::set<std::string>>> storages_;
};

}  // namespace

std::string SavedTensorsReport::str(const Annotate& annotate) const {
  std::string text =
      c10::str("saved for backward: ", bytes_str(region_bytes + node_bytes), " resident, ",
               bytes_str(region_bytes), " of them in ", count_str(regions.size(), "region"));
  if (nodes) text += c10::str(" and ", bytes_str(node_bytes), " outside of regions");
  const std::vector<Group> groups = group(regions);
  if (!groups.empty()) text += groups_str(groups);
  text += nodes_str(*this);
  return groups.empty() ? text : text + details_str(groups, annotate);
}

SavedTensorsReport saved_tensors_report(const std::optional<std::vector<at::Tensor>>& roots,
                                        const VisitSaved& visit_saved) {
  std::vector<std::shared_ptr<const Region>> regions = live_regions();
  regions.erase(std::remove_if(regions.begin(), regions.end(),
                               [](const auto& region) { return !may_be_looked_into(*region); }),
                regions.end());
  std::stable_sort(regions.begin(), regions.end(), [](const auto& a, const auto& b) {
    return naturally_less(a->name(), b->name());
  });
  SavedTensorsReport report;
  std::unordered_set<const void*> billed;
  for (const auto& region : regions) {
    report.regions.push_back(region_saves_of(*region, billed));
    report.region_bytes += report.regions.back().bytes;
  }
  if (!roots || !visit_saved) return report;
  GraphWalk walk(visit_saved, billed);
  for (const at::Tensor& root : *roots) walk.walk(root);
  report.nodes = walk.result();
  for (const NodeSaves& node : *report.nodes) report.node_bytes += node.bytes;
  return report;
}

}  // namespace remat
