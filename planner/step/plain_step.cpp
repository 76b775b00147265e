// SPDX-License-Identifier: BSD-3-Clause

// Simulates a step without remat, in which a saved tensor is alive until its node has run.
#include <algorithm>
#include <vector>

#include <remat/planner/step_cuts.h>

#include "step_graph.h"

namespace remat {
namespace {

using detail::StepGraph;

/// Note [What autograd holds]: a saved tensor shares its storage, so a storage is alive while any
/// value of it is saved, even if parts of it are written later (LSTM's gates). An in-place op that
/// needs a value it overwrites saves a copy, which autograd makes. The tensor of a
/// StepSlot::kDropped slot is alive as long as the program, in the forward, holds anything computed
/// from the op's results.
class PlainStep {
 public:
  explicit PlainStep(const StepProfile& profile)
      : graph_(profile),
        profile_(profile),
        branch_until_(profile.records.size(), -1),
        storage_until_(profile.values.size(), -1),
        copy_until_(profile.values.size(), -1),
        made_(profile.records.size() + 1, 0),
        freed_(profile.nodes.size() + 1, 0) {
    find_ends_of_branches();
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
  /// The number of a record or node; nodes are numbered after all records. Memory held until a
  /// moment is alive while that record or node runs, and freed afterwards.
  using Moment = int32_t;
  Moment after_forward(int32_t node) const { return graph_.size() + node; }

  void find_ends_of_branches() {
    std::vector<Moment> of_value(profile_.values.size(), -1);
    for (int32_t j = graph_.size() - 1; j >= 0; --j) {
      Moment& until = branch_until_[j];
      for (const int32_t v : graph_.results[j])
        until = std::max({until, of_value[v], profile_.values[v].held_until});
      until = std::min(until, graph_.size() - 1);
      for (const int32_t v : profile_.records[j].reads) of_value[v] = std::max(of_value[v], until);
    }
  }

  void save(const StepSlot& slot) {
    if (slot.value < 0 || graph_.maker(slot.value) < 0) return;
    const bool is_copy = graph_.overwritten_by[slot.value] == slot.record;
    Moment& held =
        is_copy ? copy_until_[slot.value] : storage_until_[profile_.values[slot.value].storage];
    held = std::max(
        held, slot.is_dropped() ? branch_until_[slot.record] : after_forward(graph_.until(slot)));
  }

  /// Holds bytes from the end of `record` to the end of `until`.
  void hold(int64_t bytes, int32_t record, Moment until) {
    if (until <= record) return;
    made_[std::min(record + 1, graph_.size())] += bytes;
    if (until < graph_.size()) {
      made_[until + 1] -= bytes;
    } else {
      freed_[until - graph_.size()] += bytes;
    }
  }

  void hold_copies() {
    for (size_t v = 0; v < copy_until_.size(); ++v)
      hold(profile_.values[v].bytes, graph_.overwritten_by[v], copy_until_[v]);
  }

  /// Memory that the program holds at the forward's end is freed when both the program and autograd
  /// let go.
  void hold_storages() {
    for (size_t s = 0; s < storage_until_.size(); ++s) {
      const StepValue& first = profile_.values[s];
      if (first.maker < 0 || first.storage != static_cast<int32_t>(s)) continue;
      if (first.held_until < graph_.size()) {
        hold(first.bytes, first.held_until, storage_until_[s]);
        continue;
      }
      if (first.released < 0) continue;
      const Moment last = std::max(after_forward(first.released - 1), storage_until_[s]);
      (last < after_forward(0) ? released_at_once_ : freed_[last - graph_.size()]) += first.bytes;
    }
  }

  void run_forward() {
    for (int32_t j = 0; j < graph_.size(); ++j) {
      held_bytes_ += made_[j];
      reach(profile_.records[j].forward_bytes - profile_.records[j].copied_bytes);
    }
    held_bytes_ += made_[graph_.size()] + profile_.end_bytes;
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

  const StepGraph graph_;
  const StepProfile& profile_;
  std::vector<Moment> branch_until_;   // by record
  std::vector<Moment> storage_until_;  // by first value
  std::vector<Moment> copy_until_;     // by value that an in-place op saves a copy of
  std::vector<int64_t> made_;          // before each record, and after the last
  std::vector<int64_t> freed_;         // by node
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
