// SPDX-License-Identifier: BSD-3-Clause

// Times of records, and the nodes of backward with their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <remat/budget/step_log.h>
#include <remat/memory_plan/step_profile.h>

#include "step_structure.h"

namespace remat {

/// Collects what steps cost, to be added to the profile of their structure.
class StepCosts {
 public:
  /// `structure` and `records` are to outlive it.
  StepCosts(const StepLog& structure, const RecordsOfOps& records);

  /// True if the step's ops and saved tensors are those of the structure; only then it counts.
  bool add(const StepLog& step);

  /// Medians of all steps, equal records together.
  void fill(StepProfile& profile) const;

 private:
  struct Sample {
    std::vector<double> forward_us;   // by record
    std::vector<double> backward_us;  // by record
    std::vector<StepNode> nodes;
    std::vector<int32_t> node_of_slot;
  };

  bool has_same_ops(const StepLog& step) const;
  std::vector<int32_t> records_of_nodes(const StepLog& step) const;
  void add_times(const StepLog& step, Sample& sample) const;

  const StepLog& structure_;
  const RecordsOfOps& records_;
  std::vector<Sample> samples_;
};

}  // namespace remat
