// SPDX-License-Identifier: BSD-3-Clause

// The profile of a function: the step's structure with the costs of all measured steps.
#include <remat/budget/step_measurement.h>

#include <c10/util/irange.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include <remat/planner/step_cuts.h>

namespace remat {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

/// Takes the largest bytes of all steps, because a step may or may not have to allocate .grads, and
/// sizes may depend on data.
void StepMeasurement::fill_nodes(StepProfile& profile) const {
  const Sample& last = samples_.back();
  profile.nodes = last.nodes;
  for (const auto i : c10::irange(profile.slots.size())) {
    if (!profile.slots[i].is_dropped()) profile.slots[i].node = last.node_of_slot[i];
  }
  for (const Sample& sample : samples_) {
    if (sample.nodes.size() != profile.nodes.size()) continue;
    for (const auto i : c10::irange(profile.nodes.size())) {
      StepNode& node = profile.nodes[i];
      node.before_bytes = std::max(node.before_bytes, sample.nodes[i].before_bytes);
      node.inside_bytes = std::max(node.inside_bytes, sample.nodes[i].inside_bytes);
      node.after_bytes = std::max(node.after_bytes, sample.nodes[i].after_bytes);
    }
  }
}

/// The latest StepValue::released of the result in any step; -1 if unknown. A step whose nodes
/// differ from those of the last step can only tell that the result was freed before any node.
int32_t StepMeasurement::latest_release(size_t result) const {
  int32_t latest = 0;
  for (const Sample& sample : samples_) {
    const bool is_known = sample.nodes.size() == samples_.back().nodes.size();
    const int32_t released = sample.released[result];
    if (released < 0 || (released > 0 && !is_known)) return -1;
    latest = std::max(latest, released);
  }
  return latest;
}

/// If a value that is held at the forward's end grows, end_bytes grow, too. Only such values get a
/// `released`, because the cuts of a measured step keep other values longer than the program does.
void StepMeasurement::fill_values(StepProfile& profile) const {
  for (const auto i : c10::irange(structure_.results.size())) {
    StepValue& value = profile.values[structure_.results[i].value];
    const int64_t more = std::max<int64_t>(0, sizes_[i] - value.bytes);
    value.bytes += more;
    if (value.held_until < static_cast<int32_t>(profile.records.size())) continue;
    profile.end_bytes += more;
    value.released = latest_release(i);
  }
  for (StepValue& value : profile.values) {  // a write does not change the size of the storage
    const StepValue& first = profile.values[static_cast<size_t>(value.storage)];
    if (value.maker < 0 || first.maker < 0) continue;
    value.bytes = first.bytes;
    value.released = first.released;
  }
  for (const Sample& sample : samples_)
    profile.gap_bytes = std::max(profile.gap_bytes, sample.gap_bytes);
}

/// The samples whose times count: of three steps or more, all but the first, which is cold.
c10::ArrayRef<StepMeasurement::Sample> StepMeasurement::timed() const {
  const c10::ArrayRef<Sample> all(samples_);
  return all.size() > 2 ? all.slice(1) : all;
}

/// For kinds of records that no replay has run, estimates replay_us from forward_us by the ratio of
/// the two in all other records.
void StepMeasurement::fill_replay_times(StepProfile& profile) const {
  std::unordered_map<uint64_t, std::vector<double>> reruns;
  std::vector<double> tape;
  for (const Sample& sample : timed()) {
    tape.push_back(sample.tape_us);
    for (const auto& [record, ns] : sample.reruns)
      reruns[profile.records[record].kind].push_back(static_cast<double>(ns) / 1000);
  }
  std::unordered_map<uint64_t, double> by_kind;
  for (auto& [kind, times] : reruns) by_kind[kind] = median(std::move(times));
  double forward_us = 0;
  double replay_us = 0;
  for (StepRecord& record : profile.records) {
    const auto known = by_kind.find(record.kind);
    record.replay_us = known == by_kind.end() ? -1 : known->second;
    if (record.replay_us < 0) continue;
    forward_us += record.forward_us;
    replay_us += record.replay_us;
  }
  const double tape_us = median(std::move(tape));
  const double share = forward_us > 0 ? replay_us / forward_us : 1;
  for (StepRecord& record : profile.records) {
    if (record.replay_us < 0) record.replay_us = share * record.forward_us;
    record.replay_us += tape_us;
  }
}

void StepMeasurement::fill_times(StepProfile& profile) const {
  std::unordered_map<uint64_t, std::vector<size_t>> equal;
  for (const auto i : c10::irange(profile.records.size()))
    equal[profile.records[i].kind].push_back(i);
  std::vector<double> other;
  for (const Sample& sample : timed()) other.push_back(sample.other_us);
  profile.other_us = std::max(0.0, median(other));
  for (const auto& [kind, records] : equal) {
    std::vector<double> forward;
    std::vector<double> backward;
    for (const Sample& sample : timed()) {
      for (const size_t record : records) {
        forward.push_back(sample.forward_us[record]);
        backward.push_back(sample.backward_us[record]);
      }
    }
    const double forward_us = median(std::move(forward));
    const double backward_us = median(std::move(backward));
    for (const size_t record : records) {
      profile.records[record].forward_us = forward_us;
      profile.records[record].backward_us = backward_us;
    }
  }
}

StepProfile StepMeasurement::profile() const {
  StepProfile profile = structure_.profile;
  if (samples_.empty()) return profile;
  fill_nodes(profile);
  fill_values(profile);
  fill_times(profile);
  fill_replay_times(profile);
  profile.plain_peak_bytes = plain_peak_bytes(profile);
  return profile;
}

}  // namespace remat
