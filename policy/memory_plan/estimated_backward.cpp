// SPDX-License-Identifier: BSD-3-Clause

// A backward that nobody has measured: a node for each record, from the last to the first.
#include <cstdint>
#include <vector>

#include <remat/memory_plan/measuring_cuts.h>
#include <remat/memory_plan/step_cuts.h>

#include "step_graph.h"

namespace remat {
namespace {

using detail::StepGraph;

constexpr double kBytesInUs = 4096;  // a guess: only the ratio between ops matters

/// Gradients come up with the first node that reads what they are of, and go with its maker's.
class EstimatedBackward {
 public:
  EstimatedBackward(const StepProfile& profile, int64_t leaf_bytes)
      : graph_(profile),
        profile_(profile),
        leaf_bytes_(leaf_bytes),
        has_gradient_(profile.values.size(), 0) {}

  StepProfile run() {
    StepProfile estimated = profile_;
    estimated.nodes.clear();
    for (int32_t j = graph_.size() - 1; j >= 0; --j) estimated.nodes.push_back(node_of(j));
    for (StepSlot& slot : estimated.slots) {
      if (!slot.is_dropped()) slot.node = graph_.size() - 1 - slot.record;
    }
    for (StepRecord& record : estimated.records) {
      record.forward_us = record.replay_us = time_of(record);
      record.backward_us = 2 * record.forward_us;
    }
    estimated.plain_peak_bytes = plain_peak_bytes(estimated);
    return estimated;
  }

 private:
  StepNode node_of(int32_t j) {
    const StepRecord& record = profile_.records[j];
    StepNode node;
    node.name = "node";
    node.record = j;
    node.us = 2 * time_of(record);
    for (const int32_t v : graph_.results[j]) give(v);
    node.before_bytes = leaf_bytes_ + gradient_bytes_;
    for (const int32_t v : record.reads) give(v);
    node.inside_bytes = leaf_bytes_ + gradient_bytes_ + record.workspace_bytes;
    for (const int32_t v : graph_.results[j]) take(v);
    node.after_bytes = leaf_bytes_ + gradient_bytes_;
    return node;
  }

  double time_of(const StepRecord& record) const {
    int64_t bytes = 0;
    for (const int32_t v : record.makes) bytes += graph_.bytes(v);
    for (const int32_t v : record.reads) bytes += graph_.bytes(v);
    return 1 + static_cast<double>(bytes) / kBytesInUs;
  }

  void give(int32_t value) {
    if (graph_.maker(value) < 0 || has_gradient_[value]) return;
    has_gradient_[value] = 1;
    gradient_bytes_ += graph_.bytes(value);
  }

  void take(int32_t value) {
    if (!has_gradient_[value]) return;
    has_gradient_[value] = 0;
    gradient_bytes_ -= graph_.bytes(value);
  }

  const StepGraph graph_;
  const StepProfile& profile_;
  const int64_t leaf_bytes_;
  std::vector<char> has_gradient_;  // by value
  int64_t gradient_bytes_ = 0;
};

}  // namespace

StepProfile with_estimated_backward(const StepProfile& profile, int64_t leaf_bytes) {
  profile.validate();
  return EstimatedBackward(profile, leaf_bytes).run();
}

}  // namespace remat
