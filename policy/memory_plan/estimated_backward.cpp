// SPDX-License-Identifier: BSD-3-Clause

// An estimated backward: a node for each record, from the last to the first.
#include <cstdint>
#include <utility>
#include <vector>

#include <remat/memory_plan/estimated_backward.h>
#include <remat/memory_plan/step_cuts.h>

#include "step_graph.h"

namespace remat {
namespace {

using detail::StepGraph;

constexpr double kBytesInUs = 4096;  // an estimate: only the ratio between ops matters

/// A value's gradient is allocated by the first node of its readers, and freed by the node of its
/// maker.
class EstimatedBackward {
 public:
  EstimatedBackward(const StepProfile& profile, int64_t leaf_bytes)
      : graph_(profile),
        profile_(profile),
        leaf_bytes_(leaf_bytes),
        gradient_of_(profile.values.size(), kNone),
        readers_(profile.values.size(), 0) {}

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
    for (const int32_t v : record.reads) pass_on(record, v);
    node.inside_bytes = leaf_bytes_ + gradient_bytes_ + workspace_of(record);
    for (const int32_t v : graph_.results[j]) take(v);
    node.after_bytes = leaf_bytes_ + gradient_bytes_;
    return node;
  }

  /// An op that copies its inputs, such as a convolution into another layout, is assumed to copy
  /// its results' gradients, too.
  int64_t workspace_of(const StepRecord& record) const {
    if (record.workspace_bytes == 0) return 0;
    int64_t bytes = record.workspace_bytes;
    for (const int32_t v : record.makes) bytes += graph_.bytes(v);
    return bytes;
  }

  double time_of(const StepRecord& record) const {
    int64_t bytes = 0;
    for (const int32_t v : record.makes) bytes += graph_.bytes(v);
    for (const int32_t v : record.reads) bytes += graph_.bytes(v);
    return 1 + static_cast<double>(bytes) / kBytesInUs;
  }

  /// The inputs of a concatenation get views of its gradient.
  void pass_on(const StepRecord& record, int32_t value) {
    if (record.op != "aten::cat" || record.makes.empty()) return give(value);
    if (graph_.maker(value) >= 0 && gradient_of_[value] == kNone)
      hold(value, gradient_of_[record.makes[0]]);
  }

  void give(int32_t value) {
    if (graph_.maker(value) < 0 || gradient_of_[value] != kNone) return;
    hold(value, value);
    gradient_bytes_ += graph_.bytes(value);
  }

  void hold(int32_t value, int32_t gradient) {
    gradient_of_[value] = gradient;
    ++readers_[gradient];
  }

  void take(int32_t value) {
    const int32_t gradient = std::exchange(gradient_of_[value], kNone);
    if (gradient != kNone && --readers_[gradient] == 0) gradient_bytes_ -= graph_.bytes(gradient);
  }

  static constexpr int32_t kNone = -1;

  const StepGraph graph_;
  const StepProfile& profile_;
  const int64_t leaf_bytes_;
  // By value: the value whose gradient's memory its gradient is in.
  std::vector<int32_t> gradient_of_;
  std::vector<int32_t> readers_;  // by value: number of users of its gradient's memory
  int64_t gradient_bytes_ = 0;
};

}  // namespace

StepProfile with_estimated_backward(const StepProfile& profile, int64_t leaf_bytes) {
  profile.validate();
  return EstimatedBackward(profile, leaf_bytes).run();
}

}  // namespace remat
