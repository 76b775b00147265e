// SPDX-License-Identifier: BSD-3-Clause

// A step as it is without remat: what autograd saves is alive until its node has run.
#include <algorithm>
#include <vector>

#include <remat/memory_plan/step_cuts.h>

#include "step_graph.h"

namespace remat {
namespace {

using detail::StepGraph;

/// Note [What autograd holds]: saved tensors share the memory of what they were saved of, so a
/// storage is alive while any value of it is saved, also if parts of it are written later (LSTM's
/// gates). An op in place that wants what it overwrites saves a copy of it, which autograd makes.
class PlainStep {
 public:
  explicit PlainStep(const StepProfile& profile)
      : graph_(profile),
        profile_(profile),
        storage_until_(profile.values.size(), kUnsaved),
        copy_until_(profile.values.size(), kUnsaved),
        made_(profile.records.size() + 1, 0),
        freed_(profile.nodes.size() + 1, 0) {
    for (const StepSlot& slot : profile.slots) save(slot);
  }

  int64_t peak_bytes() {
    hold_copies();
    hold_storages();
    run_forward();
    run_backward();
    return peak_bytes_;
  }

 private:
  void save(const StepSlot& slot) {
    if (slot.value < 0 || graph_.maker(slot.value) < 0) return;
    const bool is_copy = graph_.overwritten_by[slot.value] == slot.record;
    int32_t& held =
        is_copy ? copy_until_[slot.value] : storage_until_[profile_.values[slot.value].storage];
    held = std::max(held, slot.is_dropped() ? kReturn : graph_.until(slot));
  }

  /// From after a record until a node has run, or the function has returned.
  void hold(int64_t bytes, int32_t record, int32_t node) {
    made_[std::min(record + 1, graph_.size())] += bytes;
    (node == kReturn ? dropped_bytes_ : freed_[node]) += bytes;
  }

  void hold_copies() {
    for (size_t v = 0; v < copy_until_.size(); ++v) {
      const auto value = static_cast<int32_t>(v);
      if (copy_until_[v] != kUnsaved)
        hold(graph_.bytes(value), graph_.overwritten_by[v], copy_until_[v]);
    }
  }

  /// What the program holds when the forward has ended goes with the last of both.
  void hold_storages() {
    for (size_t s = 0; s < storage_until_.size(); ++s) {
      const StepValue& first = profile_.values[s];
      if (first.maker < 0 || first.storage != static_cast<int32_t>(s)) continue;
      if (first.held_until < graph_.size()) {
        if (storage_until_[s] != kUnsaved) hold(first.bytes, first.held_until, storage_until_[s]);
        continue;
      }
      if (first.released < 0) continue;
      const int32_t last = std::max(first.released - 1, storage_until_[s]);
      (last < 0 ? released_at_once_ : freed_[last]) += first.bytes;
    }
  }

  void run_forward() {
    for (int32_t j = 0; j < graph_.size(); ++j) {
      held_bytes_ += made_[j];
      reach(profile_.records[j].forward_bytes);
    }
    held_bytes_ += made_[graph_.size()] + profile_.end_bytes - dropped_bytes_;
    reach(profile_.gap_bytes);
    held_bytes_ -= released_at_once_;
  }

  void run_backward() {
    for (size_t q = 0; q < profile_.nodes.size(); ++q) {
      reach(profile_.nodes[q].inside_bytes);
      held_bytes_ -= freed_[q];
      reach(profile_.nodes[q].after_bytes);
    }
  }

  void reach(int64_t bytes) { peak_bytes_ = std::max(peak_bytes_, held_bytes_ + bytes); }

  // In place of a node
  static constexpr int32_t kUnsaved = -2;
  static constexpr int32_t kReturn = -1;

  const StepGraph graph_;
  const StepProfile& profile_;
  std::vector<int32_t> storage_until_;  // by first value: the last node that needs it
  std::vector<int32_t> copy_until_;     // by value that an op in place saves a copy of
  std::vector<int64_t> made_;           // before each record, and after the last
  std::vector<int64_t> freed_;          // by node
  int64_t dropped_bytes_ = 0;           // gone when the function has returned
  int64_t released_at_once_ = 0;
  int64_t held_bytes_ = 0;
  int64_t peak_bytes_ = 0;
};

}  // namespace

int64_t plain_peak_bytes(const StepProfile& profile) {
  profile.validate();
  return PlainStep(profile).peak_bytes();
}

}  // namespace remat
