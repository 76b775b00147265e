// SPDX-License-Identifier: BSD-3-Clause

// Random programs that make no sense but obey all rules: writes, ops on shapes alone, slots of
// later records.
#include "planner/step/random_step.h"

#include <algorithm>

namespace remat::test {

namespace {

int32_t upto(std::mt19937& random, int32_t most) {
  return static_cast<int32_t>(random() % static_cast<uint32_t>(most + 1));
}

/// Returns the newest value of each storage.
std::vector<int32_t> newest(const StepProfile& profile, const std::vector<char>& written) {
  std::vector<int32_t> all;
  for (size_t v = 0; v < profile.values.size(); ++v) {
    if (!written[v]) all.push_back(static_cast<int32_t>(v));
  }
  return all;
}

void add_reads(StepProfile& profile, StepRecord& record, std::mt19937& random) {
  for (int i = upto(random, 2); i >= 0; --i) {
    const int32_t v = upto(random, static_cast<int32_t>(profile.values.size()) - 1);
    if (std::count(record.reads.begin(), record.reads.end(), v) == 0) record.reads.push_back(v);
  }
}

void add_record(StepProfile& profile, std::vector<char>& written, std::mt19937& random) {
  const auto j = static_cast<int32_t>(profile.records.size());
  StepRecord record;
  record.op = "op" + std::to_string(upto(random, 3));
  record.forward_us = 1 + upto(random, 9);
  record.replay_us = 1 + upto(random, 9);
  record.backward_us = upto(random, 20);
  record.workspace_bytes = upto(random, 3);
  record.forward_bytes = upto(random, 30);
  record.reads_data = upto(random, 5) > 0;
  add_reads(profile, record, random);
  const bool writes = upto(random, 3) == 0;
  if (writes) {
    const std::vector<int32_t> targets = newest(profile, written);
    const int32_t target = targets[random() % targets.size()];
    const StepValue before = profile.values[target];
    const auto after = static_cast<int32_t>(profile.values.size());
    profile.values.push_back({j, before.storage, before.bytes, 0});
    written[target] = 1;
    written.push_back(0);
    record.writes = {{target, after}};
    if (std::count(record.reads.begin(), record.reads.end(), target) == 0)
      record.reads.push_back(target);
  }
  for (int i = writes ? upto(random, 1) : 1 + upto(random, 1); i > 0; --i) {
    record.makes.push_back(static_cast<int32_t>(profile.values.size()));
    profile.values.push_back({j, record.makes.back(), 1 + upto(random, 9), 0});
    written.push_back(0);
  }
  profile.records.push_back(record);
}

void set_held(StepProfile& profile, std::mt19937& random) {
  const auto records = static_cast<int32_t>(profile.records.size());
  std::vector<int32_t> until(profile.values.size(), 0);
  for (const StepValue& value : profile.values)
    until[value.storage] = std::max(until[value.storage], value.maker);
  for (size_t v = 0; v < until.size(); ++v)
    until[v] = std::max(0, until[v] + upto(random, std::min(4, records - std::max(0, until[v]))));
  for (StepValue& value : profile.values) value.held_until = until[value.storage];
}

/// Sets when the program releases the storages that it still holds.
void set_released(StepProfile& profile, std::mt19937& random) {
  const auto records = static_cast<int32_t>(profile.records.size());
  for (size_t v = 0; v < profile.values.size(); ++v) {
    StepValue& value = profile.values[v];
    const StepValue& first = profile.values[value.storage];
    if (first.maker < 0 || value.held_until < records) continue;
    if (&first != &value) {
      value.released = first.released;
      continue;
    }
    value.released = upto(random, static_cast<int32_t>(profile.nodes.size()) + 1) - 1;
    if (value.released >= 0) profile.end_bytes += value.bytes;
  }
}

}  // namespace

StepProfile random_step(std::mt19937& random) {
  StepProfile profile;
  profile.name = "random";
  std::vector<char> written;
  for (int i = 1 + upto(random, 1); i >= 0; --i) {
    profile.values.push_back({-1, static_cast<int32_t>(profile.values.size()), 5, 0});
    if (upto(random, 1) == 0) profile.values.back().unpacked_bytes = 5;
    written.push_back(0);
  }
  for (int i = 3 + upto(random, 13); i > 0; --i) add_record(profile, written, random);
  set_held(profile, random);
  const auto records = static_cast<int32_t>(profile.records.size());
  const int32_t nodes = 1 + upto(random, records);
  for (int32_t q = 0; q < nodes; ++q) {
    StepNode node;
    node.name = "node" + std::to_string(q);
    node.record = std::max(0, records - 1 - q + upto(random, 2) - 1);
    node.record = std::min(node.record, records - 1);
    node.before_bytes = upto(random, 5);
    node.inside_bytes = node.before_bytes + upto(random, 5);
    node.after_bytes = upto(random, 5);
    profile.nodes.push_back(node);
  }
  for (int i = upto(random, 2 * records); i > 0; --i) {
    const auto v = upto(random, static_cast<int32_t>(profile.values.size()) - 1);
    const int32_t made = std::max(0, profile.values[v].maker);
    profile.slots.push_back({upto(random, 9) == 0 ? -1 : v,
                             std::min(records - 1, made + upto(random, upto(random, 6))),
                             upto(random, 9) == 0 ? StepSlot::kDropped : upto(random, nodes) - 1});
  }
  profile.end_bytes = upto(random, 9);
  profile.gap_bytes = std::max(0, upto(random, 15) - 6);
  set_released(profile, random);
  return profile;
}

StepCuts random_cuts(const StepProfile& profile, bool closed, std::mt19937& random) {
  StepCuts cuts;
  const auto records = static_cast<int32_t>(profile.records.size());
  for (int32_t p = 1; p < records; ++p) {
    if (upto(random, 2) == 0) cuts.positions.push_back(p);
  }
  const auto segments = static_cast<int32_t>(cuts.positions.size()) + 1;
  for (int tries = upto(random, 8); tries > 0; --tries) {
    const int32_t first = upto(random, segments - 1);
    const int32_t end = first + 2 + upto(random, 4);
    const bool fits = std::all_of(cuts.groups.begin(), cuts.groups.end(), [&](const auto& group) {
      const bool apart = end <= group.first || group.second <= first;
      const bool inside = group.first <= first && end <= group.second;
      const bool outside = first <= group.first && group.second <= end;
      return apart || (inside != outside);
    });
    if (end <= segments && fits) cuts.groups.emplace_back(first, end);
  }
  const bool all = upto(random, 9) == 0;
  for (int32_t j = 0; j < records; ++j) {
    const StepRecord& record = profile.records[j];
    const auto segment = [&](int32_t at) {
      return std::upper_bound(cuts.positions.begin(), cuts.positions.end(), at) -
             cuts.positions.begin();
    };
    for (size_t i = 0; i < record.makes.size() + record.writes.size(); ++i) {
      const int32_t v =
          i < record.makes.size() ? record.makes[i] : record.writes[i - record.makes.size()].after;
      bool crosses = false;
      for (int32_t k = 0; k < records; ++k) {
        const std::vector<int32_t>& reads = profile.records[k].reads;
        crosses |= segment(k) != segment(j) && std::count(reads.begin(), reads.end(), v) > 0;
      }
      for (const StepSlot& slot : profile.slots)
        crosses |= slot.value == v && segment(slot.record) != segment(j);
      const bool keep = upto(random, crosses && !closed ? 5 : 2) > 0 ? crosses : !crosses;
      if (all || keep || (closed && crosses)) cuts.keep.push_back({j, static_cast<int32_t>(i)});
    }
  }
  return cuts;
}

}  // namespace remat::test
