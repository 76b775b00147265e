// SPDX-License-Identifier: BSD-3-Clause

// Builds the reversed edges.
#include "step_graph.h"

#include <algorithm>

#include <remat/planner/digest.h>

namespace remat::detail {

StepGraph::StepGraph(const StepProfile& from)
    : profile(from),
      results(from.records.size()),
      uses(from.values.size()),
      overwritten_by(from.values.size(), never),
      slots_of_record(from.records.size()),
      slots_of_node(from.nodes.size()) {
  for (int32_t j = 0; j < size(); ++j) {
    const StepRecord& record = from.records[j];
    results[j] = record.makes;
    for (const StepWrite& write : record.writes) {
      results[j].push_back(write.after);
      overwritten_by[write.before] = std::min(overwritten_by[write.before], j);
    }
    if (!record.reads_data) continue;
    for (const int32_t v : record.reads) uses[v].push_back(j);
  }
  for (size_t i = 0; i < from.slots.size(); ++i) {
    const StepSlot& slot = from.slots[i];
    if (slot.node >= 0) slots_of_node[slot.node].push_back(static_cast<int32_t>(i));
    if (slot.value < 0 || maker(slot.value) < 0) continue;
    // Slots of kDropped (nothing holds the tensor when the function returns) count as uses, too: no
    // replay fills them, but the forward saves them.
    uses[slot.value].push_back(slot.record);
    if (!slot.is_dropped()) slots_of_record[slot.record].push_back(static_cast<int32_t>(i));
  }
  for (std::vector<int32_t>& records : uses) {
    std::sort(records.begin(), records.end());
    records.erase(std::unique(records.begin(), records.end()), records.end());
  }
}

namespace {

int32_t value_of(const StepProfile& profile, const KeptResult& kept) {
  const StepRecord& record = profile.records[kept.record];
  const auto makes = static_cast<int32_t>(record.makes.size());
  return kept.result < makes ? record.makes[kept.result] : record.writes[kept.result - makes].after;
}

}  // namespace

std::vector<char> kept_flags(const StepProfile& profile, const StepCuts& cuts) {
  std::vector<char> keep(profile.values.size(), 0);
  for (const KeptResult& kept : cuts.keep)
    keep[value_of(profile, kept)] = kept.policy == Policy::kOffload ? kMoved : kKept;
  return keep;
}

uint64_t record_digest(const StepProfile& profile, const StepRecord& record) {
  Digest digest;
  const auto add_value = [&](int32_t v) {
    digest.add(v);
    digest.add(profile.values[v].storage);
    digest.add(profile.values[v].bytes);
  };
  digest.add(record.op);
  digest.add(record.reads_data ? 1 : 0);
  digest.add(static_cast<int64_t>(record.reads.size()));
  for (const int32_t v : record.reads) add_value(v);
  digest.add(static_cast<int64_t>(record.makes.size()));
  for (const int32_t v : record.makes) add_value(v);
  for (const StepWrite& write : record.writes) {
    digest.add(write.before);
    add_value(write.after);
  }
  return digest.hash();
}

}  // namespace remat::detail
