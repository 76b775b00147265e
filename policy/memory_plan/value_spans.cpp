// SPDX-License-Identifier: BSD-3-Clause

// Spans of values, joined to those of their storages.
#include "value_spans.h"

#include <algorithm>

namespace remat::detail {

ValueSpans::ValueSpans(const StepGraph& graph)
    : first(graph.profile.values.size(), -1),
      last_use(graph.profile.values.size(), -1),
      last_write(graph.profile.values.size(), -1),
      saved(graph.profile.values.size(), 0),
      crossing(graph.profile.records.size() + 1),
      made_before(graph.profile.records.size() + 1, 0) {
  const std::vector<StepValue>& values = graph.profile.values;
  for (size_t v = 0; v < values.size(); ++v) {
    const int32_t storage = values[v].storage;
    if (values[storage].maker < 0 || values[storage].bytes == 0) continue;
    const int32_t made = values[v].maker;
    const int32_t last = graph.uses[v].empty() ? made : std::max(made, graph.uses[v].back());
    first[storage] = values[storage].maker;
    last_use[storage] = std::max(last_use[storage], last);
    if (static_cast<size_t>(storage) != v)
      last_write[storage] = std::max(last_write[storage], made);
    for (int32_t p = made + 1; p <= last; ++p) {
      if (crossing[p].empty() || crossing[p].back() != storage) crossing[p].push_back(storage);
    }
  }
  for (std::vector<int32_t>& storages : crossing) {
    std::sort(storages.begin(), storages.end());
    storages.erase(std::unique(storages.begin(), storages.end()), storages.end());
  }
  for (const StepSlot& slot : graph.profile.slots) {
    if (slot.value >= 0 && !slot.is_dropped()) saved[values[slot.value].storage] = 1;
  }
  for (size_t v = 0; v < values.size(); ++v) {
    if (is_inner(static_cast<int32_t>(v))) made_before[first[v] + 1] += values[v].bytes;
  }
  for (size_t j = 1; j < made_before.size(); ++j) made_before[j] += made_before[j - 1];
  small_bytes = find_small_bytes(graph);
}

/// All small values together are at most a hundredth of the total: in deep models every value is a
/// small share.
int64_t ValueSpans::find_small_bytes(const StepGraph& graph) const {
  std::vector<int64_t> sizes;
  for (size_t v = 0; v < last_use.size(); ++v) {
    if (is_inner(static_cast<int32_t>(v))) sizes.push_back(graph.bytes(static_cast<int32_t>(v)));
  }
  std::sort(sizes.begin(), sizes.end());
  int64_t sum = 0;
  for (const int64_t bytes : sizes) {
    sum += bytes;
    if (sum > total_bytes() / 100 || bytes > total_bytes() * 15 / 10000) return bytes;
  }
  return 0;
}

}  // namespace remat::detail
