// SPDX-License-Identifier: BSD-3-Clause

#include <remat/planner/measuring_cuts.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "cut_choice.h"
#include "step_graph.h"
#include "step_simulator.h"

namespace remat {
namespace {

using detail::StepGraph;
using detail::ValueSpans;

using Positions = std::vector<int32_t>;

/// Bytes of all values that cross a cut, plus the most bytes that one segment's replay saves.
int64_t bytes_with(const Positions& cuts, const StepGraph& graph, const ValueSpans& spans) {
  std::vector<char> crosses(graph.profile.values.size());
  for (const int32_t p : cuts) {
    for (const int32_t storage : spans.crossing[p]) crosses[storage] = 1;
  }
  int64_t kept = 0;
  std::vector<int64_t> saved(cuts.size() + 1);  // by segment
  for (size_t s = 0; s < crosses.size(); ++s) {
    if (!spans.is_inner(static_cast<int32_t>(s))) continue;
    const int64_t bytes = graph.bytes(static_cast<int32_t>(s));
    const auto segment = std::upper_bound(cuts.begin(), cuts.end(), spans.first[s]) - cuts.begin();
    if (crosses[s]) kept += bytes;
    if (spans.saved[s]) saved[static_cast<size_t>(segment)] += bytes;
  }
  return kept + *std::max_element(saved.begin(), saved.end());
}

Positions thinned(const Positions& cuts, size_t stride) {
  Positions some;
  for (size_t i = stride - 1; i < cuts.size(); i += stride) some.push_back(cuts[i]);
  return some;
}

}  // namespace

// Tries fewer and fewer cuts. The values that pass from layer to layer may be most of what a step
// saves, and then cuts between all layers would keep as much as a step without checkpointing.
std::vector<int32_t> measuring_cuts(const StepProfile& profile) {
  profile.validate();
  const StepGraph graph(profile);
  const ValueSpans spans(graph);
  const Positions all = detail::choose_regions(graph, spans).positions;
  Positions best = all;
  for (size_t stride = 2; stride <= all.size(); ++stride) {
    Positions some = thinned(all, stride);
    if (bytes_with(some, graph, spans) < bytes_with(best, graph, spans)) best = std::move(some);
  }
  return best;
}

int64_t peak_of_cuts(const StepProfile& profile, const std::vector<int32_t>& positions) {
  profile.validate();
  const StepGraph graph(profile);
  const OffloadTerms no_offload;
  detail::StepSimulator simulator(graph, positions, {}, no_offload);
  std::vector<char> keep(profile.values.size(), 0);
  return simulator.run(keep, detail::MissingValues::kKeep).peak_bytes;
}

}  // namespace remat
